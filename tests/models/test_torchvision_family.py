import pytest
import torch
import torchvision
from places import WEIGHTS
from torch.overrides import TorchFunctionMode
from torchvision import models

from zoo.errors import UserError
from zoo.models import torchvision_family
from zoo.models.torchvision_family import TorchvisionBackbone

needs_weights = pytest.mark.skipif(not WEIGHTS.is_file(), reason="no shared weights")

# The smallest of each family, with an image size that it takes.
SMALLEST = {
    "alexnet": 63,
    "convnext_tiny": 40,
    "densenet121": 40,
    "efficientnet_b0": 40,
    "googlenet": 40,
    "inception_v3": 75,
    "maxvit_t": 224,
    "mnasnet0_5": 40,
    "mobilenet_v2": 40,
    "mobilenet_v3_small": 40,
    "regnet_x_400mf": 40,
    "resnet18": 40,
    "shufflenet_v2_x0_5": 40,
    "squeezenet1_1": 40,
    "swin_t": 40,
    "swin_v2_t": 40,
    "vgg11_bn": 40,
    "vit_b_32": 224,
}


def family(variant):
    return models.get_model_builder(variant).__module__


def test_the_samples_are_of_every_family():
    assert set(map(family, TorchvisionBackbone.variants())) == set(map(family, SMALLEST))
    assert len(TorchvisionBackbone.variants()) >= 80


def init(variant):
    """Return the option without which two of the networks warn."""
    return {"init_weights": False} if variant in ("googlenet", "inception_v3") else {}


class _Stop(Exception):
    pass


def reference(network, images):
    """Return what torchvision's own forward gives to its pooling, else to its classifier."""
    seen = []

    def catch(module, inputs):
        seen.append(inputs[0])
        raise _Stop

    *_, (_, head) = network.named_children()
    getattr(network, "avgpool", head).register_forward_pre_hook(catch)
    with pytest.raises(_Stop), torch.no_grad():
        network(images)
    return seen[0]


class _NoRandomValues(TorchFunctionMode):
    """Start parameters at 0: drawing them takes longer than the tests."""

    DRAWS = (torch.Tensor.uniform_, torch.Tensor.normal_)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return args[0].zero_() if func in self.DRAWS else func(*args, **(kwargs or {}))


def whole(variant):
    """Return torchvision's network, in evaluation mode, with all its heads."""
    with torchvision_family._WideLayersOnMeta(), _NoRandomValues():
        network = models.get_model(variant, **init(variant)).eval()
    for parameter in network.parameters():
        # Not the small values of a usual start, under which a wrong branch would not show.
        bound = (6 / parameter[0].numel()) ** 0.5 if parameter.ndim > 1 else 1.0
        torch.nn.init.uniform_(parameter, -bound / 2, bound)
    return network


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "size"), SMALLEST.items())
def test_equals_torchvision_up_to_the_pooling(variant, size, monkeypatch):
    torch.manual_seed(0)
    network = whole(variant)
    # Of a file: also that the names are torchvision's and that the heads in it are ignored.
    monkeypatch.setattr(torchvision_family, "read_state", lambda path: network.state_dict())
    with _NoRandomValues():
        backbone = TorchvisionBackbone(variant, weights="a file").eval()

    images = torch.randn(1, 3, size, size)
    with torch.no_grad():
        (level,) = backbone(images)
    expected = reference(network, images)
    if level.ndim > expected.ndim:  # torchvision pools in forward()
        level = level.mean((2, 3))
    assert level.shape == expected.shape
    assert level.shape[1] == backbone.feature_dims[0]
    assert level.isfinite().all()
    torch.testing.assert_close(level / level.std(), expected / level.std(), rtol=1e-4, atol=1e-4)


class _AllOnMeta(TorchFunctionMode):
    """As torch.device("meta"), except that RegNet can compute with its block widths."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("variant", TorchvisionBackbone.variants())
def test_every_variant_keeps_all_but_its_classifier(variant):
    with _AllOnMeta():
        backbone = TorchvisionBackbone(variant).to("meta").eval()
        network = models.get_model(variant, **init(variant))
    heads = {name.partition(".")[0] for name in network.state_dict()} - {
        name.partition(".")[0] for name in backbone.network.state_dict()
    }
    assert heads <= {"fc", "classifier", "head", "heads", "aux1", "aux2", "AuxLogits"}
    assert not any(p.ndim == 2 and p.numel() >= 2**24 for p in backbone.parameters())
    size = backbone._smallest[0] if backbone._one_size else max(64, backbone._smallest[0])
    (level,) = backbone(torch.empty(2, 3, size, size, device="meta"))
    assert level.shape[:2] == (2, *backbone.feature_dims)
    assert level.ndim == (2 if variant.startswith("vit_") else 4)


def test_a_wide_classifier_takes_no_memory_and_nothing_kept_is_without():
    backbone = TorchvisionBackbone("alexnet")
    assert not any(p.is_meta for p in backbone.parameters())
    assert sum(p.numel() for p in backbone.parameters()) < 3e6


@pytest.mark.parametrize("variant", ["resnet18", "efficientnet_v2_s", "densenet121"])
def test_preprocess_is_that_of_torchvision_s_weights(variant):
    preset = models.get_model_weights(variant).DEFAULT.transforms()
    preprocess = TorchvisionBackbone(variant).preprocess
    assert (preprocess.channels, preprocess.scale) == ("RGB", 1.0)
    assert preprocess.mean == tuple(preset.mean)
    assert preprocess.std == tuple(preset.std)


def test_googlenet_wants_what_its_transform_input_makes():
    backbone = TorchvisionBackbone("googlenet")
    network = models.GoogLeNet(init_weights=False, transform_input=True)
    pixels = torch.rand(1, 3, 4, 4)
    preset = models.GoogLeNet_Weights.DEFAULT.transforms()
    theirs = network._transform_input(
        torchvision.transforms.functional.normalize(pixels, preset.mean, preset.std)
    )
    ours = torchvision.transforms.functional.normalize(
        pixels, backbone.preprocess.mean, backbone.preprocess.std
    )
    torch.testing.assert_close(ours, theirs)


@needs_weights
def test_shared_weights_give_torchvision_s_features():
    network = models.mobilenet_v2()
    network.features.load_state_dict(
        {
            name.removeprefix("features."): value
            for name, value in torch.load(WEIGHTS, weights_only=True).items()
        }
    )
    backbone = TorchvisionBackbone("mobilenet_v2", weights=str(WEIGHTS))
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        expected = network.eval().features(images)
        assert torch.equal(backbone.eval()(images)[0], expected)


@pytest.fixture(scope="module")
def mobilenet():
    return models.mobilenet_v2().state_dict()


def write(tmp_path, state):
    torch.save(state, tmp_path / "w.pth")
    return str(tmp_path / "w.pth")


def test_the_classifier_may_be_there_in_any_shape(tmp_path, mobilenet):
    state = {**mobilenet, "classifier.1.weight": torch.zeros(7, 1280)}
    backbone = TorchvisionBackbone("mobilenet_v2", weights=write(tmp_path, state))
    name = "features.18.0.weight"
    assert torch.equal(backbone.network.state_dict()[name], mobilenet[name])


def test_a_part_is_not_enough(tmp_path, mobilenet):
    state = {name: v for name, v in mobilenet.items() if not name.startswith("features.18.")}
    with pytest.raises(UserError, match=r"(?s)only 306 of .* 312 .*missing.*features\.18\.0\.weig"):
        TorchvisionBackbone("mobilenet_v2", weights=write(tmp_path, state))


@pytest.mark.slow
def test_weights_of_another_network_are_refused(tmp_path, mobilenet):
    with pytest.raises(UserError, match="NOTHING matches"):
        TorchvisionBackbone("resnet18", weights=write(tmp_path, mobilenet))


@pytest.mark.slow
def test_files_of_densenet_have_old_names(tmp_path):
    network = models.densenet121()
    old = {}
    for name, value in network.state_dict().items():
        for part in ("norm1", "norm2", "conv1", "conv2"):
            if "denselayer" in name:
                name = name.replace(f".{part}.", f".{part[:-1]}.{part[-1]}.")
        if not name.endswith("num_batches_tracked"):
            old[name] = value
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    backbone = TorchvisionBackbone("densenet121", weights=write(tmp_path, old))
    name = "features.denseblock4.denselayer16.conv2.weight"
    assert torch.equal(backbone.network.state_dict()[name], network.state_dict()[name])


@pytest.mark.slow
def test_files_of_vit_have_old_names(monkeypatch):
    with _NoRandomValues():
        network = models.vit_b_32()
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for name, value in network.state_dict().items()
    }
    monkeypatch.setattr(torchvision_family, "read_state", lambda path: old)
    with _NoRandomValues():
        backbone = TorchvisionBackbone("vit_b_32", weights="a file")
    name = "encoder.layers.encoder_layer_11.mlp.3.weight"
    assert torch.equal(backbone.network.state_dict()[name], network.state_dict()[name])


def test_imagenet_is_torchvision_s_default_file(tmp_path, monkeypatch):
    path = write(tmp_path, models.shufflenet_v2_x0_5().state_dict())
    asked = []
    monkeypatch.setattr(torchvision_family, "download", lambda url: asked.append(url) or path)
    TorchvisionBackbone("shufflenet_v2_x0_5", weights="imagenet")
    assert asked == [models.ShuffleNet_V2_X0_5_Weights.DEFAULT.url]


def test_an_unknown_variant_is_an_error_with_a_hint():
    with pytest.raises(UserError, match=r"'mobilenetv2'; did you mean mobilenet_v2\?"):
        TorchvisionBackbone("mobilenetv2")
    with pytest.raises(UserError):  # a network, but no classifier
        TorchvisionBackbone("fcn_resnet50")


@pytest.mark.parametrize(
    ("variant", "size", "says"),
    [("vit_b_32", 128, "of 224x224, not 128x128"), ("inception_v3", 64, "75x75 and larger, not 6")],
)
def test_an_image_size_it_cannot_take_is_an_error(variant, size, says):
    with _AllOnMeta():
        backbone = TorchvisionBackbone(variant)
    with pytest.raises(UserError, match=says):
        backbone(torch.empty(1, 3, size, size))
