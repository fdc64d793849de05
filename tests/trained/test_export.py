"""zoo export: a file that computes what the network computes, and says how images are prepared."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import QUIET, run_on_photographs
from killed import killed_at_every_step
from PIL import Image
from replicas import photo
from small_run import small_run

import zoo
from zoo.config.schema import Images
from zoo.data.pipeline import centre_crops
from zoo.network.embedder import Embedder
from zoo.support.files import check_folder, file_digest
from zoo.trained import export as exports

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def torch_is_too_old():
    """Return whether ONNX is refused here because of the version of torch, and of nothing else."""
    try:
        exports._check_format(Path("m.onnx"), None, None)
    except zoo.UserError as error:
        return "ONNX needs torch" in str(error)
    return False


@pytest.mark.parametrize("version", ["2.4.0", "2.6.0+cpu"])
def test_onnx_says_which_torch_it_needs(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(zoo.UserError, match=f"needs torch 2.7 or newer, and this is {version[:5]}"):
        exports._check_format(Path("m.onnx"), None, None)
    assert exports._check_format(Path("m.pt2"), None, None) == "torch"


needs_onnx = pytest.mark.skipif(torch_is_too_old(), reason="this torch is too old for ONNX")
ONNX = pytest.param(".onnx", marks=needs_onnx)


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


def with_backbone(run, name, side=64, size=6, **arguments):
    """Return a trained network with another backbone, at random values."""
    model = zoo.load(run, device="cpu")
    torch.manual_seed(0)
    model.embedder = Embedder(zoo.build("backbones", name, **arguments), size).eval()
    model.embedding_size = model.embedder.embedding_size
    images = Images(resize=side + 8, crop=side)
    model.config = model.config.model_copy(update={"images": images})
    return model


def embeddings_of(path, pixels):
    """Return what the file gives, by nothing of the zoo."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, {"images": pixels})[0]
    return torch.export.load(str(path)).module()(torch.from_numpy(pixels)).numpy()


def neighbours(embeddings):
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines.argmax(1)


@pytest.mark.parametrize("ending", [ONNX, ".pt2"])
@pytest.mark.slow
def test_the_command_writes_what_gives_the_same_neighbours(run, tmp_path, command, ending):
    path = tmp_path / f"model{ending}"
    status, out, error = command("export", run, "-o", path)
    assert (status, error) == (0, "exporting, which may take a minute\n")
    first, told, *_ = out.splitlines()
    assert first == f"{path} and {path.name}.json"
    assert told.endswith(
        "28 of 28 have the same nearest neighbour (12 of the test split, 16 random)"
    )
    assert {one.name for one in tmp_path.iterdir()} == {path.name, f"{path.name}.json"}
    model = zoo.load(run, device="cpu")
    images = [photo(seed, size=(50, 44)) for seed in range(20)]
    pixels = np.stack([prepared(image) for image in images])
    found = embeddings_of(path, pixels)
    wanted = model(images)
    np.testing.assert_allclose(found, wanted, atol=exports.TOLERANCE)
    assert (neighbours(found) == neighbours(wanted)).all()
    for count in (1, 3):
        np.testing.assert_allclose(embeddings_of(path, pixels[:count]), found[:count], atol=1e-6)


def prepared(image):
    """Prepare an image as the config of the run says, by Pillow alone."""
    image = image.resize((40, 40), Image.Resampling.BILINEAR).crop((4, 4, 36, 36))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bn_inception", {"levels": "LMH"}),
        ("torchvision.mobilenet_v2", {}),
        ("abe", {"backbone": {"name": "convnet", "width": 4}, "learners": 2, "at": "blocks.1"}),
        ("ensemble", {"backbones": [{"name": "convnet", "width": 4}, "sphere_convnet"]}),
    ],
)
def test_other_backbones(run, tmp_path, name, arguments):
    model = with_backbone(run, name, **arguments)
    done = exports.export(model, tmp_path / "m.onnx", reporter=QUIET)
    assert done.difference.largest < exports.TOLERANCE
    assert done.difference.moved == 0
    images = [photo(seed, size=(90, 80)) for seed in range(4)]
    side = (Image.Resampling.BILINEAR,)
    cut = [image.resize((72, 72), *side).crop((4, 4, 68, 68)) for image in images]
    pixels = np.stack([np.asarray(image).transpose(2, 0, 1) for image in cut])
    np.testing.assert_allclose(embeddings_of(done.path, pixels), model(images), atol=1e-5)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "ending"), [("gem", ".onnx"), ("attention", ".pt2")])
def test_learned_poolings_and_deeper_heads(tmp_path, pooling, ending):
    more = [f"model.pooling={pooling}", "model.hidden=6", "model.norm=features"]
    model = zoo.load(small_run(tmp_path, *more))
    done = exports.export(model, tmp_path / f"m{ending}", reporter=QUIET)
    assert done.difference.largest < exports.TOLERANCE
    assert done.difference.moved == 0


def test_the_description_says_how_images_are_prepared(run, tmp_path, written):
    written(lambda embeddings: embeddings)
    done = exports.export(run, tmp_path / "model.pt2", reporter=QUIET)
    found = json.loads((tmp_path / "model.pt2.json").read_text())
    assert found == done.description
    model = zoo.load(run)
    assert found["input"] == {
        "name": "images",
        "type": "uint8",
        "shape": ["batch", 3, 32, 32],
        "channels": "RGB",
        "values": [0, 255],
    }
    assert found["output"]["shape"] == ["batch", 8]
    preparation = found["preparation"]
    assert (preparation["resize"], preparation["keep_aspect"], preparation["crop"]) == (
        40,
        False,
        32,
    )
    assert "scale to 40 x 40 pixels, whatever the shape" in preparation["steps"]
    assert (found["run"], found["network"]) == (run.name, model.network_digest())
    assert found["checked"]["largest_difference"] == done.difference.largest
    assert found["sha256"] == file_digest(done.path)


@pytest.mark.parametrize(
    "images",
    [
        Images(resize=40, crop=32),
        Images(resize=40, keep_aspect=True, crop=32),
        Images(resize=24, crop=32, pad=4),
        Images(crop=48),
        Images(resize=32),
    ],
)
@pytest.mark.parametrize("size", [(50, 44), (44, 51), (37, 90)])
def test_the_lines_that_are_printed_do_what_the_zoo_does(run, tmp_path, monkeypatch, images, size):
    model = zoo.load(run, device="cpu")
    model.config = model.config.model_copy(update={"images": images})
    monkeypatch.chdir(tmp_path)
    photo(3, size=size).save("photo.jpg")
    assert torch.equal(pixels_of_the_lines(model, monkeypatch), as_the_zoo_has_them(images))


def pixels_of_the_lines(model, monkeypatch):
    """Run the lines that are printed, on photo.jpg, and return what the network is given."""
    description = exports._describe(model, "torch", (32, 32), exports.Difference(0.0, 1, 0, 0))
    Path("m.pt2").write_bytes(b"a network")
    description["sha256"] = hashlib.sha256(b"a network").hexdigest()
    code = exports.snippet(exports.Exported(Path("m.pt2"), description, None))
    seen = {}

    class Network:
        def module(self):
            return lambda pixels: seen.setdefault("pixels", pixels)

    monkeypatch.setattr(torch.export, "load", lambda file: Network())
    exec(code, {})
    return seen["pixels"]


def as_the_zoo_has_them(images):
    return centre_crops(zoo.trained.images.GivenImages(["photo.jpg"], 10**6), images, [0])


def an_image(mode):
    """Return an image of a mode, the values of deep gray all over their range."""
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I;16B"):
        deep = rng.integers(0, 65536, (44, 50)).astype("<u2" if mode == "I;16" else ">u2")
        return Image.frombytes(mode, (50, 44), deep.tobytes())
    if mode.startswith("I"):
        low, high = {"I": (0, 65536), "I beyond": (-(2**20), 2**24)}[mode]
        return Image.fromarray(rng.integers(low, high, (44, 50), np.int32))
    if mode.startswith("F"):
        scale = {"F": 1, "F to 255": 255, "F to 65535": 65535, "F beyond": 1e6, "F of one": 0}[mode]
        values = (scale * rng.random((44, 50)) - (mode == "F of one")).astype(np.float32)
        values[0, :3] = (np.nan, np.inf, -np.inf)
        return Image.fromarray(values)
    if mode in ("LAB", "HSV", "YCbCr", "CMYK"):
        return (
            photo(3, size=(50, 44)).convert(mode) if mode != "LAB" else Image.new("LAB", (50, 44))
        )
    if mode == "P":
        return photo(3, size=(50, 44)).convert("P")
    image = photo(3, size=(50, 44)).convert("RGBA")
    image.putalpha(Image.fromarray(rng.integers(0, 256, (44, 50)).astype(np.uint8)))
    return image.convert("L").convert("PA") if mode == "PA" else image.convert(mode)


GRAY = ["I;16", "I;16B", "I", "I beyond", "F", "F to 255", "F to 65535", "F beyond", "F of one"]
OTHERS = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "HSV", "YCbCr"]


@pytest.mark.parametrize("mode", GRAY + OTHERS)
def test_the_lines_take_images_of_every_mode(run, tmp_path, monkeypatch, mode):
    model = zoo.load(run, device="cpu")
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").touch()
    monkeypatch.setattr(Image, "open", lambda *_, **__: an_image(mode))
    wanted = as_the_zoo_has_them(model.config.images)
    assert wanted.numpy().std() > 10 or mode == "F of one"
    assert torch.equal(pixels_of_the_lines(model, monkeypatch), wanted)


@pytest.mark.parametrize("mode", ["I;16", "1", "L", "LA", "P", "RGB", "RGBA", "I", "F", "CMYK"])
def test_the_lines_take_files_of_every_mode(run, tmp_path, monkeypatch, mode):
    model = zoo.load(run, device="cpu")
    monkeypatch.chdir(tmp_path)
    kind = "TIFF" if mode in ("I", "F", "CMYK") else "PNG"
    image = an_image("RGBA").convert("P") if mode == "P" else an_image(mode)
    image.save("photo.jpg", kind)
    wanted = as_the_zoo_has_them(model.config.images)
    assert torch.equal(pixels_of_the_lines(model, monkeypatch), wanted)


def test_the_lines_refuse_another_file(run, tmp_path, monkeypatch):
    model = zoo.load(run, device="cpu")
    description = exports._describe(model, "torch", (32, 32), exports.Difference(0.0, 1, 0, 0))
    path = tmp_path / "m.pt2"
    path.write_bytes(b"another network")
    code = exports.snippet(exports.Exported(path, {**description, "sha256": "0" * 64}, None))
    with pytest.raises(AssertionError, match="these lines are of another file"):
        exec(code, {})


@needs_onnx
@pytest.mark.slow
def test_the_lines_run_as_they_are_printed(run, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo(3, size=(60, 50)).save("photo.jpg")
    _, out, _ = command("export", run, "-q", "--opset", 19)
    assert out == f"{run.name}.onnx and {run.name}.onnx.json\n"
    assert onnx.load(f"{run.name}.onnx").opset_import[0].version == 19
    _, out, _ = command("export", run, "-o", "m.pt2")
    names = {}
    exec(out[out.index("import hashlib") :], names)
    np.testing.assert_allclose(
        names["embeddings"].numpy(), zoo.load(run)(["photo.jpg"]), atol=exports.TOLERANCE
    )


def test_without_the_test_images_random_ones_are_tried(tmp_path, written):
    run = run_on_photographs(tmp_path)
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    written(lambda embeddings: embeddings)
    done = exports.export(run, tmp_path / "m.pt2", reporter=QUIET)
    assert (done.difference.images, done.difference.real) == (16, 0)


def test_images_of_no_fixed_size(run, tmp_path, written):
    written(lambda embeddings: embeddings)
    model = zoo.load(run, device="cpu")
    model.config = model.config.model_copy(update={"images": Images()})
    done = exports.export(model, tmp_path / "m.pt2", reporter=QUIET)
    assert done.description["input"]["shape"] == ["batch", 3, 36, 40]
    dataset = model.config.dataset.model_copy(update={"root": str(tmp_path / "gone")})
    model.config = model.config.model_copy(update={"dataset": dataset})
    with pytest.raises(
        zoo.UserError, match="its images were used in their own size, which is unknown"
    ):
        exports.export(model, tmp_path / "n.pt2", reporter=QUIET)


# --- what goes wrong


@pytest.fixture
def written(monkeypatch):
    """Return a function that says what the file is to make of what the network gives."""
    networks = []

    def write(network, example, opset):
        networks.append(network)
        return b"a network"

    def turned(change):
        def read(_):
            return lambda images: change(networks[-1](torch.from_numpy(images)).numpy())

        monkeypatch.setitem(exports._WRITE, "torch", write)
        monkeypatch.setitem(exports._READ, "torch", read)

    return turned


NETWORKS = {b"old": '{"of": "old"}', b"new": '{"of": "new"}'}


def exported(place):
    """Return the network, and its description if there is one; see that they fit."""
    network, beside = place.read_bytes(), exports.beside_of(place)
    if not beside.exists():
        return network, None
    assert beside.read_text() == NETWORKS[network]
    return network, beside.read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.slow
def test_a_kill_leaves_no_description_of_another_network(tmp_path):
    place = tmp_path / "m.pt2"
    exports._save(place, b"old", NETWORKS[b"old"])
    seen = set()
    for _ in killed_at_every_step(tmp_path, lambda: exports._save(place, b"new", NETWORKS[b"new"])):
        seen.add(exported(place))
        for path in (place, exports.beside_of(place)):
            check_folder(path)
        assert {one.name for one in tmp_path.iterdir()} <= {"m.pt2", "m.pt2.json"}
        exports._save(place, b"old", NETWORKS[b"old"])
    assert {network for network, description in seen if description} == {*NETWORKS}
    assert exported(place)[0] == b"new"


@pytest.mark.parametrize("full", [1, 2])
def test_a_full_disk_leaves_the_old_export(tmp_path, monkeypatch, full):
    place = tmp_path / "m.pt2"
    exports._save(place, b"old", NETWORKS[b"old"])
    whole, calls = os.fsync, []

    def fsync(number):
        calls.append(number)
        if len(calls) == full:
            raise OSError(28, "No space left on device")
        whole(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        exports._save(place, b"new", NETWORKS[b"new"])
    assert exported(place) == (b"old", NETWORKS[b"old"])
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name == "nt", reason="there is no such limit here")
@pytest.mark.parametrize("ending", [".pt2", ONNX])
@pytest.mark.slow
def test_a_file_that_does_not_fit_is_one_message(run, tmp_path, command, ending):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        status, out, error = command("export", run, "-o", tmp_path / f"m{ending}", "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (out, error.count("\n")) == ("", 1)
    assert status in (1, 2)
    assert "cannot be written (File too large)" in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_the_network_is_not_kept(run, tmp_path, command, written):
    written(lambda embeddings: embeddings + np.float32(1e-3))
    status, out, error = command("export", run, "-o", tmp_path / "m.pt2", "-q")
    assert (status, out) == (1, "")
    assert "m.pt2: not written, as it differs from the network: largest difference 1.0e-03" in error
    assert "allowed is 1e-05" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x * np.nan, lambda x: x[:, 1:]])
def test_other_neighbours_nan_and_another_shape(run, tmp_path, written, change):
    written(change)
    with pytest.raises(exports.ExportError):
        exports.export(run, tmp_path / "m.pt2", reporter=QUIET)
    assert list(tmp_path.iterdir()) == []


def test_neighbours_count_where_the_numbers_are_near(run, tmp_path, written, monkeypatch):
    monkeypatch.setattr(exports, "TOLERANCE", 10)
    written(lambda embeddings: embeddings[:, ::-1] * np.arange(embeddings.shape[1]))
    with pytest.raises(exports.ExportError, match="of 28 have the same nearest neighbour"):
        exports.export(run, tmp_path / "m.pt2", reporter=QUIET)


class Stubborn(torch.nn.Module):
    feature_dims = (4,)
    preprocess = zoo.base.Preprocess()

    def forward(self, images):
        return (images.mean((2, 3)).repeat(1, 2)[:, : 4 if images.max().item() > 0 else 3],)


def test_a_network_that_cannot_be_exported(run, tmp_path, command, monkeypatch):
    model = zoo.load(run, device="cpu")
    model.embedder = Embedder(Stubborn(), 6).eval()
    with pytest.raises(exports.ExportError, match=r"^convnet cannot be exported: "):
        exports.export(model, tmp_path / "m.pt2", reporter=QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "m.bin"], "m.bin: end it in .onnx or .pt2, or give a format"),
        (["-o", "m.onnx", "--format", "tensorrt"], "format 'tensorrt': give onnx or torch"),
        (["-o", "m.pt2", "--opset", "18"], "opset is a setting of ONNX"),
        (["-o", "m.onnx", "--opset", "3"], "opset 3: give 18 or more"),
        pytest.param(
            ["-o", "m.onnx", "--opset", "999"],
            f"opset 999: give 18 to {onnx.defs.onnx_opset_version()}, or leave it out",
            marks=needs_onnx,
        ),
        pytest.param(["-o", "none/m.onnx"], "there is no folder", marks=needs_onnx),
        pytest.param(["-o", "folder.onnx"], "folder.onnx is a folder", marks=needs_onnx),
        (["-o", "other.pt2"], "other.pt2.json is a folder"),
    ],
)
def test_bad_input_is_one_message(run, tmp_path, command, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exports, "load", lambda *_: pytest.fail("work was begun"))
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "other.pt2.json").mkdir()
    status, out, error = command("export", run, *arguments)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert said in error


@needs_onnx
def test_an_opset_that_torch_did_not_write(run, tmp_path, monkeypatch, caplog):
    def write(network, example, opset):
        for package in ("torch.onnx", "onnxscript.version_converter"):
            logging.getLogger(package).warning("cannot convert", exc_info=ValueError())
        exports._check_opset(19, 20)

    monkeypatch.setitem(exports._WRITE, "onnx", write)
    with pytest.raises(zoo.UserError, match="opset 19 is not possible: torch wrote 20"):
        exports.export(run, tmp_path / "m.onnx", opset=19, reporter=QUIET)
    assert list(tmp_path.iterdir()) == []
    assert not caplog.records


@needs_onnx
@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_a_package_it_is_said_what_to_install(run, tmp_path, command, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    status, _, error = command("export", run, "-o", tmp_path / "m.onnx")
    assert status == 2
    assert (
        f"ONNX needs {package}, which is not installed: pip install 'metric-zoo[export]'" in error
    )
