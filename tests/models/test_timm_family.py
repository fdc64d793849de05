import importlib.util
import sys

import pytest
import torch

import zoo
from zoo.errors import UserError
from zoo.models import timm_family
from zoo.models.timm_family import TimmBackbone
from zoo.training.embedder import Embedder

needs_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is absent")
if importlib.util.find_spec("timm"):
    import timm

# Small ones: a map with channels second, a map with channels last, tokens, several maps.
MAPS = {"test_resnet": 96, "test_convnext": 64, "lcnet_050": 256, "mambaout_femto": 288}
POOLED = {"test_vit": 64, "coat_lite_tiny": 320}


def pair(variant):
    """Return the backbone and timm's network with the same values, in evaluation mode."""
    torch.manual_seed(0)
    backbone = TimmBackbone(variant).eval()
    network = timm.create_model(variant).eval()
    network.load_state_dict(backbone.network.state_dict(), strict=False)
    images = torch.randn(2, *network.pretrained_cfg["input_size"])
    with torch.no_grad():
        return backbone, network, images, backbone(images)[0]


@needs_timm
@pytest.mark.parametrize("variant", MAPS)
def test_equals_timm_s_feature_map(variant):
    backbone, network, images, level = pair(variant)
    with torch.no_grad():
        expected = network.forward_features(images)
    if variant == "mambaout_femto":
        expected = expected.permute(0, 3, 1, 2)
    assert torch.equal(level, expected)
    assert level.ndim == 4
    assert backbone.feature_dims == (level.shape[1],) == (MAPS[variant],)


@needs_timm
@pytest.mark.parametrize("variant", POOLED)
def test_networks_of_no_one_map_are_pooled_as_timm_does(variant):
    backbone, network, images, level = pair(variant)
    with torch.no_grad():
        features = network.forward_features(images)
        assert torch.equal(level, network.forward_head(features, pre_logits=True))
    assert backbone.feature_dims == (level.shape[1],) == (POOLED[variant],)


@needs_timm
@pytest.mark.parametrize("variant", [*MAPS, *POOLED])
def test_every_parameter_gets_a_gradient(variant):
    backbone = TimmBackbone(variant).eval()
    backbone(torch.randn(1, *backbone.network.pretrained_cfg["input_size"]))[0].sum().backward()
    assert not [name for name, p in backbone.named_parameters() if p.grad is None]


@needs_timm
@pytest.mark.parametrize("variant", ["test_resnet", "resnet18"])
def test_preprocess_is_that_of_timm_s_weights(variant):
    config = timm.get_pretrained_cfg(variant)
    preprocess = TimmBackbone(variant).preprocess
    assert (preprocess.channels, preprocess.scale) == ("RGB", 1.0)
    assert preprocess.mean == tuple(config.mean)
    assert preprocess.std == tuple(config.std)


@needs_timm
def test_a_tag_chooses_the_weights_and_their_preprocessing():
    default, tagged = map(TimmBackbone, ("resnet18", "resnet18.tv_in1k"))
    assert "resnet18.tv_in1k" in TimmBackbone.variants()
    assert tagged.network.pretrained_cfg["tag"] == "tv_in1k"
    assert default.feature_dims == tagged.feature_dims


@needs_timm
def test_is_built_by_name_and_embeds():
    embedder = Embedder(zoo.build("backbones", "timm.test_resnet"), 8)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert embedder(images).shape == (2, 8)


@needs_timm
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
@pytest.mark.parametrize("variant", ["test_resnet", "test_vit"])
def test_a_file_comes_back_in_full_whatever_its_classifier(variant, kind, tmp_path):
    network = timm.create_model(variant, num_classes=7)
    path = tmp_path / f"w.{kind}"
    if kind == "pth":
        torch.save(network.state_dict(), path)
    else:
        pytest.importorskip("safetensors.torch").save_file(network.state_dict(), path)
    backbone = TimmBackbone(variant, weights=str(path))
    for name, value in backbone.network.state_dict().items():
        assert torch.equal(value, network.state_dict()[name]), name


@needs_timm
def test_a_part_is_not_enough(tmp_path):
    state = timm.create_model("test_resnet").state_dict()
    del state["conv1.0.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"missing in the file: conv1\.0\.weight"):
        TimmBackbone("test_resnet", weights=str(tmp_path / "w.pth"))


@needs_timm
@pytest.mark.parametrize("name", ["none.safetensors", "none.pth", "bad.safetensors"])
def test_a_file_that_cannot_be_read_is_named(name, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"<html>")
    with pytest.raises(UserError, match=rf"{name}: "):
        TimmBackbone("test_resnet", weights=str(tmp_path / name))


class _Fetched:
    """timm, with weights that come from nowhere, or do not come."""

    def __init__(self, state):
        self.state = state

    def __getattr__(self, name):
        return getattr(timm, name)

    def create_model(self, variant, pretrained=False):
        if not pretrained:
            return timm.create_model(variant)
        if self.state is None:
            raise OSError("no network")
        network = timm.create_model(variant)
        network.load_state_dict(self.state)
        return network


@needs_timm
def test_imagenet_is_timm_s_own(monkeypatch):
    state = timm.create_model("test_resnet").state_dict()
    monkeypatch.setattr(timm_family, "_timm", lambda: _Fetched(state))
    backbone = TimmBackbone("test_resnet", weights="imagenet")
    for name, value in backbone.network.state_dict().items():
        assert torch.equal(value, state[name]), name


@needs_timm
def test_a_failed_download_says_which_file_to_get(monkeypatch):
    monkeypatch.setattr(timm_family, "_timm", lambda: _Fetched(None))
    says = r"(?s)no network.*https://huggingface.co/timm/test_resnet\.r160_in1k.*name the file"
    with pytest.raises(UserError, match=says):
        TimmBackbone("test_resnet", weights="imagenet")


@needs_timm
def test_a_variant_without_weights_says_so():
    without = next(n for n in timm.list_models("resnet*") if not timm.is_model_pretrained(n))
    with pytest.raises(UserError, match=rf"timm has no weights for '{without}'"):
        TimmBackbone(without, weights="imagenet")


@needs_timm
@pytest.mark.parametrize("variant", ["test_resent", "hf-hub:stranger/model", "local-dir:/tmp"])
def test_an_unknown_variant_is_an_error(variant):
    with pytest.raises(UserError, match=f"timm has no model '{variant}'"):
        TimmBackbone(variant)
    with pytest.raises(UserError, match=f"timm has no backbone named '{variant}'"):
        zoo.build("backbones", f"timm.{variant}")


@needs_timm
def test_an_image_size_it_cannot_take_is_an_error():
    with pytest.raises(UserError, match=r"timm\.test_vit takes images of 160x160, not 64x160"):
        TimmBackbone("test_vit")(torch.empty(1, 3, 64, 160))


def test_without_timm_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "timm.*" in zoo.names("backbones")
    assert zoo.describe("backbones", "timm.*").broken is None
    for build in (
        lambda: zoo.describe("backbones", "timm.resnet18"),
        lambda: TimmBackbone("resnet18"),
        lambda: zoo.build("backbones", "timm.resnet18"),
    ):
        with pytest.raises(UserError, match=r"not installed: timm; pip install 'metric-zoo\[timm"):
            build()
