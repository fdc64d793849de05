import importlib.util
import sys

import pytest
import torch

import zoo
from zoo import runner
from zoo.errors import UserError
from zoo.models import timm_family
from zoo.models.timm_family import TimmBackbone
from zoo.network.embedder import Embedder
from zoo.progress import Reporter

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


# ---- other sizes, tokens


@needs_timm
@pytest.mark.parametrize("variant", ["test_vit", "vit_tiny_patch16_224", "swinv2_cr_tiny_224"])
def test_another_image_size_is_that_of_timm(variant):
    torch.manual_seed(0)
    backbone = TimmBackbone(variant, image_size=96 if "swin" not in variant else 448).eval()
    torch.manual_seed(0)
    network = timm.create_model(variant).eval()
    side = backbone._smallest[0]
    network.set_input_size(img_size=(side, side))
    images = torch.randn(1, 3, side, side)
    backbone.check_size((side, side))
    with torch.no_grad():
        features = network.forward_features(images)
        last = getattr(network, "output_fmt", "NCHW") == "NHWC"
        expected = features.permute(0, 3, 1, 2) if last else features
        if features.ndim != 4:
            expected = network.forward_head(features, pre_logits=True)
        assert torch.equal(backbone(images)[0], expected)


@needs_timm
def test_position_embeddings_of_a_file_are_interpolated(tmp_path):
    from timm.layers import resample_abs_pos_embed

    network = timm.create_model("test_vit")
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    backbone = TimmBackbone("test_vit", str(tmp_path / "weights.pth"), image_size=96)
    expected = resample_abs_pos_embed(network.pos_embed, new_size=[6, 6], num_prefix_tokens=1)
    assert torch.equal(backbone.network.pos_embed, expected)


@needs_timm
@pytest.mark.parametrize(
    ("variant", "size", "says"),
    [
        ("test_vit", 90, "image_size is 90, which is not a multiple of the 16 pixels of a patch"),
        ("test_vit", 0, "image_size must be 1 or more, not 0"),
        ("test_resnet", 96, "takes images of any size; leave image_size out"),
        ("coat_lite_tiny", 96, "takes images of 224x224 only; leave image_size out"),
    ],
)
def test_an_image_size_that_is_impossible(variant, size, says):
    with pytest.raises(UserError, match=says):
        TimmBackbone(variant, image_size=size)


@needs_timm
@pytest.mark.parametrize(
    "variant", ["test_vit", "vit_small_patch16_dinov3", "vit_base_patch16_siglip_224"]
)
def test_tokens_are_those_of_timm(variant):
    torch.manual_seed(0)
    backbone = TimmBackbone(variant, tokens="map").eval()
    network = timm.create_model(variant).eval()
    network.load_state_dict(backbone.network.state_dict(), strict=False)
    images = torch.randn(1, *network.pretrained_cfg["input_size"])
    with torch.no_grad():
        tokens = network.forward_features(images)
        found = backbone(images)[0]
    rows, columns = network.patch_embed.grid_size
    assert found.shape == (1, backbone.feature_dims[0], rows, columns)
    patches = tokens[:, network.num_prefix_tokens :]
    assert torch.equal(found.flatten(2).transpose(1, 2), patches)
    if "siglip" in variant:
        with pytest.raises(UserError, match="has no class token; set tokens=map"):
            TimmBackbone(variant, tokens="class")
        return
    other = TimmBackbone(variant, tokens="class").eval()
    other.network.load_state_dict(backbone.network.state_dict())
    with torch.no_grad():
        assert torch.equal(other(images)[0], tokens[:, 0])


@needs_timm
def test_a_network_that_normalises_the_mean_has_normalised_tokens():
    torch.manual_seed(0)
    backbone = TimmBackbone("eva02_tiny_patch14_224", tokens="class").eval()
    network = backbone.network
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        token = network.forward_features(images)[:, 0]
        assert torch.allclose(backbone(images)[0], network.fc_norm(token), atol=1e-6)
    assert isinstance(network.norm, torch.nn.Identity)


@needs_timm
@pytest.mark.parametrize("tokens", ["class", "map"])
def test_every_parameter_of_the_tokens_gets_a_gradient_and_a_file_fits(tokens, tmp_path):
    network = timm.create_model("vit_base_patch16_siglip_224" if tokens == "map" else "test_vit")
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    name = network.pretrained_cfg["architecture"]
    backbone = TimmBackbone(name, str(tmp_path / "weights.pth"), tokens=tokens).eval()
    backbone(torch.randn(1, *network.pretrained_cfg["input_size"]))[0].square().sum().backward()
    assert not [n for n, p in backbone.named_parameters() if p.grad is None]


@needs_timm
@pytest.mark.parametrize("variant", ["test_resnet", "coat_lite_tiny", "test_convnext"])
def test_a_network_without_such_tokens(variant):
    with pytest.raises(UserError, match="is no vision transformer with tokens; leave tokens out"):
        TimmBackbone(variant, tokens="map")


@needs_timm
def test_a_config_with_the_wrong_size_is_refused_before_training(few_glyphs, tmp_path):
    settings = ["model.backbone=timm.test_vit", "device=cpu", f"output={tmp_path}"]
    with pytest.raises(UserError, match=r"takes images of 160x160, not 32x32.*image_size"):
        runner.run("ice_glyphs", settings, reporter=Reporter(quiet=True))
    assert not list(tmp_path.glob("*/metrics.jsonl"))
