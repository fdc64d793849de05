import hashlib
import json
import zlib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from places import SHARED

import zoo
from zoo.errors import UserError
from zoo.models import bn_inception
from zoo.models.bn_inception import BNInception
from zoo.network.embedder import Embedder, Preprocessor

RECORD = SHARED / "bn_inception.json"
needs_shared = pytest.mark.skipif(not RECORD.is_file(), reason="no shared description")

# Of that file's probe: what the public definition gives, mean and norm of the whole map, and values
# where some are not 0.
PROBE = {
    "L": (3.3043681251144412, 2815.627144623773, [0.0, 0.0, 0.0, 0.0, 0.0]),
    "M": (
        4.661816440784657,
        2601.9543495782113,
        [
            5.517585283327667,
            9.356925708919674,
            11.08866844911042,
            12.29209205269371,
            12.019090508846345,
        ],
    ),
    "H": (
        4.5638531433260825,
        2686.0603751687167,
        [0.15661790473167522, 1.2327659002749287, 0.0, 0.0, 0.0],
    ),
}


def fill(key, shape):
    """Return the values that the probe wants of a tensor, as the shared file says it."""
    random = np.random.RandomState(zlib.crc32(key.encode()) & 0x7FFFFFFF)
    if len(shape) == 4:
        return random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
    if key.endswith(("running_var", "_bn.weight")):
        return 0.5 + random.random_sample(shape)
    return random.standard_normal(shape) * 0.1


def filled_state():
    return {
        name: torch.from_numpy(fill(name, tuple(value.shape)))
        for name, value in BNInception().state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


@pytest.fixture(scope="module")
def state():
    return filled_state()


@pytest.fixture(scope="module")
def filled(state):
    network = BNInception(levels="LMH").double().eval()
    network.load_state_dict(state, strict=False)
    return network


@pytest.fixture(scope="module")
def probed(filled):
    """Return the output of every block, and the maps, for the probe's input."""
    blocks = {}
    run_block = filled._run_block
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(
            filled, "_run_block", lambda name, x: blocks.setdefault(name, run_block(name, x))
        )
        images = np.random.RandomState(7).standard_normal((2, 3, 227, 227))
        maps = filled(torch.from_numpy(images))
    return blocks, maps


@pytest.mark.slow
def test_the_maps_are_those_of_the_public_definition(probed):
    for (mean, norm, first), level in zip(PROBE.values(), probed[1], strict=True):
        assert float(level.mean()) == pytest.approx(mean, rel=1e-9)
        assert float(level.norm()) == pytest.approx(norm, rel=1e-9)
        assert level.flatten()[:5].tolist() == pytest.approx(first, abs=1e-9)


@needs_shared
def test_every_block_gives_what_the_shared_probe_says(probed):
    blocks = {**probed[0], "pooled": probed[0]["5b"].mean((2, 3))}
    probe = json.loads(RECORD.read_text())["probe"]
    assert blocks.keys() == probe.keys()
    for name, wanted in probe.items():
        values = blocks[name]
        assert list(values.shape) == wanted["shape"], name
        assert values.flatten()[:5].tolist() == pytest.approx(wanted["first5"], abs=1e-9), name
        assert float(values.norm()) == pytest.approx(wanted["norm"], rel=1e-9), name
        if "mean" in wanted:
            assert float(values.mean()) == pytest.approx(wanted["mean"], abs=1e-9), name
            assert float(values.std()) == pytest.approx(wanted["std"], abs=1e-9), name


@needs_shared
def test_names_and_shapes_are_the_checkpoint_s():
    wanted = json.loads(RECORD.read_text())["state"]
    ours = {name: list(value.shape) for name, value in BNInception().state_dict().items()}
    assert ours == {n: s for n, s in wanted.items() if not n.startswith("last_linear.")}


@needs_shared
def test_preprocess_is_the_checkpoint_s():
    wanted = json.loads(RECORD.read_text())["checkpoint"]
    preprocess = BNInception.preprocess
    assert preprocess.channels == wanted["input_space"]
    assert preprocess.scale == wanted["input_range"][1]
    assert list(preprocess.mean) == wanted["mean_bgr"]
    assert list(preprocess.std) == wanted["std"]
    assert bn_inception._URL.endswith("/" + wanted["file"])


def test_a_red_pixel_comes_last_and_in_0_to_255():
    pixel = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)  # R, G, B
    planes = Preprocessor(BNInception.preprocess)(pixel).flatten().tolist()
    assert planes == pytest.approx([30 - 104, 20 - 117, 10 - 128])


def write(tmp_path, state):
    torch.save(state, tmp_path / "w.pth")
    return str(tmp_path / "w.pth")


SUBSETS = ["".join(s) for size in (1, 2, 3) for s in combinations("LMH", size)]


@pytest.fixture(scope="module")
def every_map(state):
    """Return images, and the maps of all levels by letter."""
    network = BNInception(levels="LMH").eval()
    network.load_state_dict(state, strict=False)
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return images, dict(zip("LMH", network(images), strict=True))


@pytest.mark.parametrize("levels", SUBSETS)
def test_a_subset_of_levels_gives_the_same_maps(levels, state, every_map, monkeypatch):
    monkeypatch.setattr(bn_inception, "read_state", lambda path: state)
    network = BNInception("a file", levels=levels).eval()
    images, wanted = every_map
    with torch.no_grad():
        maps = network(images)
    assert len(maps) == len(levels)
    for level, values in zip(levels, maps, strict=True):
        assert torch.equal(values, wanted[level])
    assert network.feature_dims == tuple(values.shape[1] for values in maps)


@pytest.mark.parametrize("levels", ["L", "M", "H"])
def test_every_parameter_gets_a_gradient(levels):
    # In evaluation mode: in training the mean of the batch takes away a convolution's bias.
    network = BNInception(levels=levels).eval()
    network(torch.randn(1, 3, 48, 48))[0].square().mean().backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


def test_what_lies_above_the_highest_level_is_not_built():
    names = list(BNInception(levels="L").state_dict())
    assert names == list(BNInception().state_dict())[: len(names)]
    assert names[-1].startswith("inception_3c_")


@pytest.mark.parametrize("levels", ["", "l", "HL", "LL", "LMHH", "X", "L,H"])
def test_other_levels_are_refused(levels):
    with pytest.raises(UserError, match=rf"levels '{levels}': give .*L, M, H, in that order"):
        BNInception(levels=levels)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(7, 7), (7, 40), (224, 224), (227, 227), (240, 240), (256, 299)])
def test_takes_every_size_from_the_least_on(size):
    low, middle, high = BNInception(levels="LMH").to("meta")(
        torch.empty(2, 3, *size, device="meta")
    )
    assert (low.shape[1], middle.shape[1], high.shape[1]) == (576, 1056, 1024)
    assert middle.shape[-2:] == high.shape[-2:]
    if size[0] == 224:
        assert low.shape[-2:] == (14, 14)
        assert high.shape[-2:] == (7, 7)


@pytest.mark.parametrize(("sides", "halved"), [(112, 56), (56, 28), (57, 28), (114, 57)])
def test_the_stem_halves_as_the_paper_says_rounding_up(sides, halved):
    # Of 224 the paper's figure 5 has 56 and 28; the probe's 227 rounds only once.
    assert bn_inception._halve(torch.zeros(1, 1, sides, sides)).shape[2:] == (halved, halved)


@pytest.mark.parametrize("rows", range(2, 8))
@pytest.mark.parametrize("columns", [4, 5])
def test_maxima_are_of_the_windows_that_a_convolution_would_start(rows, columns):
    x = torch.rand(2, 3, rows, columns)
    halved = bn_inception._halve_like_a_convolution(x)
    assert halved.shape == (2, 3, (rows + 1) // 2, (columns + 1) // 2)
    for i in range(halved.shape[2]):
        for j in range(halved.shape[3]):
            window = x[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            assert torch.equal(halved[:, :, i, j], window.amax((2, 3)))


@pytest.mark.parametrize("size", [(6, 6), (6, 40), (40, 1)])
def test_a_smaller_image_is_an_error_that_says_so(size):
    says = rf"takes images of 7x7 and larger, not {size[0]}x{size[1]}; change images"
    with pytest.raises(UserError, match=says):
        BNInception(levels="L")(torch.empty(1, 3, *size))


def assert_loaded(network, state):
    for name, value in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, state[name].float()), name


def test_a_file_comes_back_in_full(tmp_path):
    network = BNInception(levels="M")
    assert_loaded(BNInception(write(tmp_path, network.state_dict()), "M"), network.state_dict())


def test_the_classifier_and_flat_rows_of_older_files_are_taken(tmp_path, state):
    older = {n: v[None] if "_bn." in n else v for n, v in state.items()}
    older["last_linear.weight"] = torch.zeros(1000, 1024)
    older["last_linear.bias"] = torch.zeros(1000)
    assert older["conv1_7x7_s2_bn.running_mean"].shape == (1, 64)
    assert_loaded(BNInception(write(tmp_path, older)), state)


def test_faults_of_a_file_are_listed(tmp_path, state):
    wrong = dict(state)
    del wrong["conv2_3x3.bias"]
    wrong["inception_5c_1x1.weight"] = torch.zeros(1)
    wrong["inception_3a_1x1_bn.weight"] = torch.zeros(1, 65)
    with pytest.raises(UserError) as error:
        BNInception(write(tmp_path, wrong))
    assert str(error.value).splitlines()[1:] == [
        "  missing in the file: conv2_3x3.bias",
        "  unknown to the network: inception_5c_1x1.weight",
        "  of another shape: inception_3a_1x1_bn.weight (1, 65), not (64,)",
    ]


def test_a_file_without_the_levels_asked_for_is_refused(tmp_path):
    path = write(tmp_path, BNInception(levels="L").state_dict())
    with pytest.raises(UserError, match=r"missing in the file: inception_4a_1x1\.weight"):
        BNInception(path, levels="M")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path


@pytest.mark.slow
def test_imagenet_is_downloaded_checked_and_kept(hub, monkeypatch, state):
    served = Path(write(hub, state))
    digest = hashlib.sha256(served.read_bytes()).hexdigest()[:9]
    served = served.rename(hub / f"bn_inception-{digest}.pth")
    monkeypatch.setattr(bn_inception, "_URL", served.as_uri())
    assert_loaded(BNInception("imagenet"), state)
    served.unlink()
    assert_loaded(BNInception("imagenet", levels="L"), state)


def test_a_failed_download_says_which_file_to_put_where(hub, monkeypatch):
    url = (hub / "bn_inception-52deb4733.pth").as_uri()
    monkeypatch.setattr(bn_inception, "_URL", url)
    with pytest.raises(UserError) as error:
        BNInception("imagenet")
    assert str(error.value).splitlines()[1:] == [
        f"  get       {url}",
        f"  put it in {hub / 'hub' / 'checkpoints'}",
        "  its SHA-256 begins with 52deb4733",
        "  or name a file that you have: model.backbone.weights=<file>",
    ]


def test_other_content_than_the_name_promises_is_dropped(hub, monkeypatch):
    (hub / "bn_inception-52deb4733.pth").write_bytes(b"something else")
    monkeypatch.setattr(bn_inception, "_URL", (hub / "bn_inception-52deb4733.pth").as_uri())
    with pytest.raises(UserError, match="hash"):
        BNInception("imagenet")


def test_an_embedder_takes_it_with_frozen_statistics():
    embedder = Embedder(zoo.build("backbones", "bn_inception"), 8, freeze="batchnorm")
    images = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8)
    assert embedder(images).shape == (2, 8)
    assert not any("_bn." in n for n, p in embedder.named_parameters() if p.requires_grad)
    assert not embedder.backbone.conv1_7x7_s2_bn.training
