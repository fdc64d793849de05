import math

import pytest
import torch
from places import WEIGHTS
from torch import nn

from zoo.base import Preprocess
from zoo.errors import UserError
from zoo.network.embedder import Embedder, Preprocessor


class Toy(nn.Module):
    """A backbone of one level, or more."""

    def __init__(self, levels=1, preprocess=None):
        super().__init__()
        self.preprocess = preprocess or Preprocess()
        planes = len(self.preprocess.mean)
        self.body = nn.Sequential(
            nn.Conv2d(planes, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3)
        )
        self.feature_dims = (6,) * levels

    def forward(self, images):
        return (self.body(images),) * len(self.feature_dims)


class Given(nn.Module):
    """A backbone that gives what it was given."""

    preprocess = Preprocess()

    def __init__(self, level):
        super().__init__()
        self.level = level
        self.feature_dims = (level.shape[1],)

    def forward(self, images):
        return (self.level,)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pixels(n=4, planes=3, side=13):
    return torch.randint(0, 256, (n, planes, side, side), dtype=torch.uint8)


# --- preprocessing


def test_rgb_is_scaled_and_normalised():
    images = pixels()
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    result = Preprocessor(Preprocess("RGB", 1.0, mean, std))(images)
    for plane in range(3):
        expected = (images[:, plane].double() / 255 - mean[plane]) / std[plane]
        torch.testing.assert_close(result[:, plane].double(), expected, rtol=1e-5, atol=1e-6)
    assert result.dtype == torch.float32


def test_bgr_in_0_to_255_is_obeyed():
    # A pure red, a pure green and a pure blue image, for weights in the manner of Caffe.
    images = torch.zeros(3, 3, 2, 2, dtype=torch.uint8)
    for image in range(3):
        images[image, image] = 255
    result = Preprocessor(Preprocess("BGR", 255.0, (104, 117, 128), (1, 1, 1)))(images)
    assert torch.equal(result[:, :, 0, 0], torch.tensor(
        [[-104.0, -117.0, 127.0], [-104.0, 138.0, -128.0], [151.0, -117.0, -128.0]]
    ))  # fmt: skip


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_gray_fills_three_planes(channels):
    gray = pixels(planes=1)
    preprocessor = Preprocessor(Preprocess(channels))
    assert torch.equal(preprocessor(gray), preprocessor(gray.expand(-1, 3, -1, -1)))


def test_colour_becomes_gray_as_in_pillow():
    image = pytest.importorskip("PIL.Image")
    images = pixels(n=1)
    pillow = image.fromarray(images[0].permute(1, 2, 0).numpy()).convert("L")
    expected = torch.frombuffer(bytearray(pillow.tobytes()), dtype=torch.uint8).view(13, 13)
    result = Preprocessor(Preprocess("L", 255.0, (0.0,), (1.0,)))(images)
    assert result.shape == (1, 1, 13, 13)
    assert (result[0, 0] - expected).abs().max() < 0.51  # Pillow rounds


def test_gray_stays_gray():
    gray = pixels(planes=1)
    result = Preprocessor(Preprocess("L", 1.0, (0.5,), (0.25,)))(gray)
    torch.testing.assert_close(result, (gray / 255 - 0.5) / 0.25)


@pytest.mark.parametrize(
    "images",
    [torch.rand(2, 3, 5, 5), pixels()[0], pixels(planes=3).repeat(1, 2, 1, 1)],
    ids=["float", "no batch", "six planes"],
)
def test_other_images_are_refused(images):
    with pytest.raises(UserError, match="takes uint8"):
        Preprocessor(Preprocess())(images)


@pytest.mark.parametrize(
    "contradiction",
    [Preprocess("L"), Preprocess(mean=(0.5,)), Preprocess(std=(1.0, 0.0, 1.0))],
)
def test_a_contradictory_preprocess_is_refused(contradiction):
    with pytest.raises(UserError, match="values of mean"):
        Preprocessor(contradiction)


# --- embeddings and features


def test_embeddings_are_a_linear_map_of_the_pooled_features():
    net = Embedder(Toy(), 5).eval()
    features, embeddings = net.features(pixels()), net(pixels())
    assert (features.shape, embeddings.shape) == ((4, 6), (4, 5))
    images = pixels()
    torch.testing.assert_close(net(images), net.heads[0](net.features(images)))
    assert net.embedding_size == 5


def test_without_a_layer_the_features_are_the_embeddings():
    net, images = Embedder(Toy(), None).eval(), pixels()
    assert torch.equal(net(images), net.features(images))
    assert net.embedding_size == 6
    assert net.head_parameters() == []


@pytest.mark.parametrize(
    ("pooling", "pool"), [("avg", lambda x: x.mean((2, 3))), ("max", lambda x: x.amax((2, 3)))]
)
def test_maps_are_pooled(pooling, pool):
    level = torch.randn(4, 6, 3, 2)
    assert torch.equal(Embedder(Given(level), None, pooling)(pixels()), pool(level))


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_pooled_features_pass(pooling):
    level = torch.randn(4, 6)
    assert torch.equal(Embedder(Given(level), None, pooling)(pixels()), level)


def test_features_of_another_rank_are_an_error():
    with pytest.raises(UserError, match=r"Given gave features of shape \(4, 6, 3\)"):
        Embedder(Given(torch.randn(4, 6, 3)), None)(pixels())


def test_the_layer_keeps_cosines_at_the_start():
    net = Embedder(Given(torch.randn(4, 6)), 6)
    cosine = nn.functional.cosine_similarity
    features, embeddings = net.features(pixels()), net(pixels())
    torch.testing.assert_close(
        cosine(embeddings[:, None], embeddings[None], dim=2),
        cosine(features[:, None], features[None], dim=2),
    )


@pytest.mark.parametrize("size", [8, 64, 100])
def test_the_layer_keeps_lengths_at_the_start(size):
    net = Embedder(Given(torch.randn(500, 64)), size)
    ratio = net(pixels()).norm(dim=1) / net.features(pixels()).norm(dim=1)
    assert ratio.square().mean().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"pooling": "mean"}, "pooling 'mean' is not one of avg, max"),
        ({"freeze": "batchnrom"}, r"did you mean batchnorm\?"),
        ({"embedding_size": 0}, "embedding_size 0: give 1 or more"),
    ],
)
def test_unknown_values_are_refused(arguments, says):
    with pytest.raises(UserError, match=says):
        Embedder(Toy(), **{"embedding_size": 4, **arguments})


class Levels(nn.Module):
    """A backbone of three levels of different widths."""

    preprocess = Preprocess()
    feature_dims = (5, 6, 7)

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(c, c + d, 1) for c, d in STEPS)

    def forward(self, images):
        low = self.first(images)
        middle = self.second(low).relu()
        return low, middle, self.third(middle)


STEPS = ((3, 2), (5, 1), (6, 1))


def test_levels_stand_side_by_side_and_are_projected_apart():
    net = Embedder(Levels(), 4).eval()
    images = pixels()
    maps = net.backbone(net.preprocessor(images))
    features = [level.mean((2, 3)) for level in maps]
    torch.testing.assert_close(net.features(images), torch.cat(features, 1))
    embeddings = net(images)
    assert embeddings.shape == (4, 12)
    assert net.embedding_size == 12
    for head, pooled, level in zip(net.heads, features, net.levels(embeddings), strict=True):
        torch.testing.assert_close(level, head(pooled))


def test_combined_levels_weigh_alike():
    """The cosine of what is searched with is the mean of the levels' cosines."""
    net = Embedder(Levels(), 4).eval()
    embeddings, features = net(pixels()), net.features(pixels())
    for vectors, sizes, combined in (
        (embeddings, [4, 4, 4], net.combined(embeddings)),
        (features, [5, 6, 7], net.combined_features(features)),
    ):
        cosines = [torch.cosine_similarity(p[:1], p[1:]) for p in vectors.split(sizes, 1)]
        found = torch.cosine_similarity(combined[:1], combined[1:])
        torch.testing.assert_close(found, torch.stack(cosines).mean(0))
    single = Embedder(Toy(), 4)
    vectors = single(pixels())
    assert single.combined(vectors) is vectors


def test_levels_without_linear_layers():
    net = Embedder(Levels(), None)
    assert net.level_sizes == [5, 6, 7]
    assert net(pixels()).shape == (4, 18)


@pytest.mark.parametrize("backbone", [nn.Linear(2, 2), lambda images: (images,)])
def test_what_is_no_backbone_is_refused(backbone):
    with pytest.raises(UserError, match="is not a backbone"):
        Embedder(backbone, 4)


def test_state_survives_a_round_trip(tmp_path):
    first, second, images = Embedder(Toy(), 5), Embedder(Toy(), 5), pixels()
    first(images)
    torch.save(first.state_dict(), tmp_path / "net.pt")
    second.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(first.eval()(images), second.eval()(images))
    assert not any(name.startswith("preprocessor") for name in first.state_dict())


# --- freezing


def step(net, images):
    """Take one step with everything that wants to learn; return what did not change."""
    before = {name: value.clone() for name, value in net.state_dict().items()}
    parameters = net.trunk_parameters() + net.head_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.5, weight_decay=0.1)
    net.train()
    net(images).square().sum().backward()
    optimizer.step()
    return {name for name, value in net.state_dict().items() if torch.equal(value, before[name])}


NORM = {
    f"backbone.body.1.{name}"
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def randomised():
    toy = Toy()
    for name, value in toy.state_dict().items():
        if "num" not in name:
            value.copy_(torch.rand_like(value) + 0.1)
    return toy


def test_nothing_is_frozen_unless_asked():
    net = Embedder(randomised(), 5)
    assert step(net, pixels()) == set()
    assert len(net.trunk_parameters()) == 6


def test_frozen_batchnorm_stays_bit_for_bit():
    net = Embedder(randomised(), 5, freeze="batchnorm")
    for _ in range(3):
        assert step(net, pixels()) == NORM
    net.eval().train()
    assert not net.backbone.body[1].training
    assert net.backbone.body[0].training
    assert len(net.trunk_parameters()) == 4


def test_a_frozen_trunk_stays_bit_for_bit_and_takes_no_gradient():
    net = Embedder(randomised(), 5, freeze="trunk")
    for _ in range(3):
        assert step(net, pixels()) == {n for n in net.state_dict() if n.startswith("backbone.")}
    assert net.trunk_parameters() == []
    assert len(net.head_parameters()) == 2
    assert not net.features(pixels()).requires_grad
    assert not any(module.training for module in net.backbone.modules())
    assert net.training


# --- precision and memory


def test_under_autocast_embeddings_are_float32():
    net, images = Embedder(Toy(), 5).eval(), pixels()
    expected = net(images)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = net(images)
        level = net.backbone(net.preprocessor(images))[0]
    assert level.dtype == torch.bfloat16
    assert embeddings.dtype == net.features(images).dtype == torch.float32
    torch.testing.assert_close(embeddings, expected, rtol=0.05, atol=0.05)
    embeddings.square().sum().backward()
    assert all(math.isfinite(p.grad.sum()) for p in net.parameters())


def test_double_precision_goes_through():
    assert Embedder(Toy(), 5).double()(pixels()).dtype == torch.float64


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("wanted", [torch.contiguous_format, torch.channels_last])
def test_input_has_the_memory_format_of_the_weights(given, wanted):
    seen = []
    net = Embedder(Toy(), 5).to(memory_format=wanted)
    net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    net(pixels().contiguous(memory_format=given))
    assert seen[0].is_contiguous(memory_format=wanted)


# --- with real weights


def test_mobilenet_embeds_as_torchvision_does():
    path = WEIGHTS
    if not path.is_file():
        pytest.skip("no shared weights")
    from torchvision import models
    from torchvision.transforms.functional import convert_image_dtype, normalize

    from zoo.models.torchvision_family import TorchvisionBackbone

    reference = models.mobilenet_v2().eval()
    reference.load_state_dict(torch.load(path, weights_only=True), strict=False)
    images = pixels(n=2, side=96)
    with torch.no_grad():
        ready = normalize(convert_image_dtype(images), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        expected = nn.functional.adaptive_avg_pool2d(reference.features(ready), 1).flatten(1)
        net = Embedder(TorchvisionBackbone("mobilenet_v2", weights=str(path)), None).eval()
        torch.testing.assert_close(net(images), expected, rtol=1e-3, atol=1e-4)
