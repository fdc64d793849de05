"""zoo.load: a run folder becomes a callable from images to embeddings."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from replicas import photo, photographs
from small_run import downgrade_to_0_1_0

import zoo
from zoo import runner
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("few_glyphs")

QUIET = Reporter(quiet=True)


def train(output, *changes, config="ice_glyphs"):
    settings = {"train.iterations": 3, "sampler.classes": 4, "output": output}
    settings |= dict(change.split("=", 1) for change in changes)
    few = [f"{key}={value}" for key, value in settings.items()]
    result = runner.run(config, few, reporter=QUIET)
    return output / result["run"]


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on somebody's photographs, whose weights are from a file that is gone."""
    here = tmp_path_factory.mktemp("folder")
    photographs(here / "photos", {"train": 4, "test": 3}, 4, (40, 36))
    network = zoo.build("backbones", "torchvision.resnet18")
    torch.save(network.network.state_dict(), here / "weights.pth")
    changes = (
        f"dataset.root={here / 'photos'}",
        "model.backbone.name=torchvision.resnet18",
        f"model.backbone.weights={here / 'weights.pth'}",
        "model.embedding_size=8",
        "images.resize=40",
        "images.crop=32",
    )
    run = train(here / "runs", *changes, config="ice_folder")
    (here / "weights.pth").unlink()
    return run


def unit(vectors):
    return vectors / np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)


def test_it_is_the_network_that_was_measured(glyphs):
    found = zoo.load(glyphs).embed_test(QUIET)
    ranks = zoo.evaluate.ranks(found.embeddings, found.labels)
    assert (ranks.numpy() == RunFolder(glyphs).ranks()).all()
    assert found.embeddings.dtype == np.float32


def test_embeddings_of_the_test_split_are_kept(glyphs, monkeypatch):
    model = zoo.load(glyphs)
    found = model.embed_test(QUIET)
    monkeypatch.setattr(type(model), "_embed", None)
    assert (model.embed_test(QUIET).embeddings == found.embeddings).all()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"no archive"])
def test_damaged_embeddings_are_computed_again(glyphs, damage):
    model = zoo.load(glyphs)
    found = model.embed_test(QUIET)
    (glyphs / "embeddings.npz").write_bytes(damage)
    assert (model.embed_test(QUIET).embeddings == found.embeddings).all()


def test_embeddings_are_kept_where_that_is_possible(glyphs, tmp_path):
    run = shutil.copytree(glyphs, tmp_path / "run")
    (run / "embeddings.npz").unlink(missing_ok=True)
    (run / "embeddings.npz").mkdir()
    with pytest.warns(UserWarning, match="the embeddings cannot be saved"):
        zoo.load(run).embed_test(QUIET)


@pytest.mark.slow
def test_images_in_any_form(folder, tmp_path):
    model = zoo.load(folder)
    image = photo(5, size=(50, 44))
    image.save(tmp_path / "x.png")
    forms = [tmp_path / "x.png", str(tmp_path / "x.png"), image, np.asarray(image)]
    found = model(forms)
    assert found.shape == (4, 8)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, found[:1].repeat(4, 0), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    for form in forms:
        np.testing.assert_allclose(model(form), found[0], atol=1e-6)
    assert model([]).shape == (0, 8)
    batch = np.stack([np.asarray(image)] * 2)
    assert model(batch).shape == (2, 8)


def test_modes_are_as_in_training(folder):
    model = zoo.load(folder)
    image = photo(5, size=(50, 44)).convert("L")
    np.testing.assert_allclose(model(image), model(image.convert("RGB")), atol=1e-6)
    np.testing.assert_allclose(model(image.convert("RGBA")), model(image), atol=1e-6)


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16")


def in_mode(mode, index):
    image = photo(index, size=(50, 44))
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert("P").convert(mode) if mode == "PA" else image.convert(mode)


def test_gray_and_colour_in_one_call(folder, glyphs):
    """For a network of three planes, and for one of one: each as it is alone."""
    images = [in_mode(mode, i) for i, mode in enumerate(MODES)]
    images += [np.asarray(images[1]), np.asarray(images[5])]
    for run in (folder, glyphs):
        model = zoo.load(run)
        found = model(images)
        assert found.shape == (15, model.embedding_size)
        np.testing.assert_allclose(found, [model(image) for image in images], atol=1e-5)
        assert np.abs(found[1] - found[5]).max() > 1e-3
        np.testing.assert_array_equal(found[[1, 5]], found[-2:])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_an_opened_image_is_turned_as_its_file_is(glyphs, tmp_path, mode):
    exif = Image.Exif()
    exif[0x112] = 6
    photo(4, size=(30, 20)).convert(mode).save(tmp_path / "turned.png", exif=exif)
    model = zoo.load(glyphs)
    of_path = model(tmp_path / "turned.png")
    with Image.open(tmp_path / "turned.png") as image:
        np.testing.assert_allclose(model(image), of_path, atol=1e-5)
        assert np.abs(model(np.asarray(image.convert("L"))) - of_path).max() > 1e-3


def test_images_are_prepared_as_those_of_the_test_split(folder):
    model = zoo.load(folder)
    found, data = model.embed_test(QUIET), model.test_split()
    own = model([data.root / file for file in data.files])
    np.testing.assert_allclose(own, unit(found.embeddings), atol=1e-5)


@pytest.mark.slow
def test_levels_weigh_alike(tmp_path):
    photographs(tmp_path / "photos", {"train": 4, "test": 3}, 4, (40, 36))
    changes = (
        f"dataset.root={tmp_path / 'photos'}",
        "model.backbone.weights=null",
        "model.embedding_size=4",
        "images.resize=64",
        "images.crop=64",
        "train.iterations=1",
    )
    model = zoo.load(train(tmp_path / "runs", *changes, config="ice_lmh_folder"))
    levels = unit(model([photo(1), photo(2)])).reshape(2, 3, 4)
    np.testing.assert_allclose(np.linalg.norm(levels, axis=2), 3**-0.5, atol=1e-5)


@pytest.mark.slow
def test_a_network_that_was_not_trained_is_the_one_that_its_seed_makes(tmp_path):
    run = train(tmp_path, "train.iterations=0")
    torch.manual_seed(99)
    found = zoo.load(run).embed_test(QUIET)
    assert (zoo.evaluate.ranks(*found).numpy() == RunFolder(run).ranks()).all()


def test_an_unfinished_run_says_how_far_it_is(glyphs, tmp_path):
    run = shutil.copytree(glyphs, tmp_path / "run")
    (run / "result.json").unlink()
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save({**state, "iteration": 2}, run / "checkpoint.pt")
    with pytest.warns(UserWarning, match="not finished; this is iteration 2 of 3"):
        zoo.load(run)


def test_other_test_images_are_refused(folder, tmp_path):
    run = shutil.copytree(folder, tmp_path / "run")
    extra = zoo.load(folder).test_split().root / "test" / "test0" / "extra.png"
    photo(77).save(extra)
    try:
        with pytest.raises(UserError, match="the test images have changed"):
            zoo.load(run).embed_test(QUIET)
    finally:
        extra.unlink()


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("none.jpg", "cannot be used: No such file"),
        (np.zeros((4, 4), np.float32), "image 0 is float32 of shape"),
        (np.zeros((4, 4, 7), np.uint8), "of shape \\(4, 4, 7\\); arrays must be uint8"),
        (3, "image 0 is 3; give a path"),
        ([np.zeros((4, 4), np.uint8)], "image 0 is a list; give a path"),
        (torch.zeros(3, 4, 4).byte(), r"image 0 is uint8 of shape \(3, 4, 4\); give a path"),
        (b"a.jpg", "image 0 is b'a.jpg'; give a path"),
    ],
)
def test_what_is_no_image(glyphs, image, said):
    with pytest.raises(UserError, match=said):
        zoo.load(glyphs)([image])


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (None, "images are None; give a path, a PIL image or a uint8 array, or a list of these"),
        (5, "images are 5; give"),
        ({"a.jpg"}, "images are a set; give"),
        ({"a.jpg": 1}, "images are a dict; give"),
        (b"a.jpg", "images are b'a.jpg'; give"),
        (torch.zeros(1, 3, 4, 4).byte(), "a torch tensor; embed_pixels takes tensors"),
    ],
)
def test_what_are_no_images(glyphs, images, said):
    with pytest.raises(UserError, match=said):
        zoo.load(glyphs)(images)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"batch_size": -1}, "batch_size must be a whole number 1 or more or None, not -1"),
        ({"batch_size": 0}, "not 0"),
        ({"workers": -1}, "workers must be a whole number from 0 to 1024, not -1"),
        ({"max_pixels": 0.5}, "max_pixels must be"),
        ({"reporter": "quiet"}, "reporter must be Reporter or None, not 'quiet'"),
    ],
)
def test_options_that_cannot_be(glyphs, option, said):
    with pytest.raises(UserError, match=said):
        zoo.load(glyphs)(np.zeros((4, 4), np.uint8), **option)


@pytest.mark.parametrize("run", [None, 5, b"ice"])
def test_what_is_no_run(run):
    with pytest.raises(UserError, match="run must be text or a path, not"):
        zoo.load(run)


@pytest.mark.parametrize("device", [5, None, torch.float32])
def test_what_is_no_device(glyphs, device):
    with pytest.raises(UserError, match="device must be text or device, not"):
        zoo.load(glyphs, device=device)


def test_images_from_a_generator(glyphs):
    model = zoo.load(glyphs)
    images = [np.full((32, 32), shade, np.uint8) for shade in (0, 99, 255)]
    images[0][:16] = 255
    np.testing.assert_array_equal(model(image for image in images), model(images))
    np.testing.assert_array_equal(model(tuple(images)), model(images))
    assert model(iter([])).shape == (0, 128)


def test_an_image_that_is_too_large(folder):
    image = folder.parent.parent / "photos" / "test" / "test0" / "0.png"
    with pytest.raises(UserError, match="the limit is 100"):
        zoo.load(folder)(image, max_pixels=100)


def test_no_checkpoint(glyphs, tmp_path):
    run = shutil.copytree(glyphs, tmp_path / "run")
    (run / "checkpoint.pt").unlink()
    with pytest.raises(UserError, match="has no checkpoint.pt"):
        zoo.load(run)


def test_a_checkpoint_of_another_network(glyphs, tmp_path):
    run = downgrade_to_0_1_0(shutil.copytree(glyphs, tmp_path / "run"))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("embedding_size: 128", "embedding_size: 64"))
    with pytest.raises(UserError, match="not of the network in its config.yaml"):
        zoo.load(run)


# --- naming a run


def test_a_run_by_its_name_or_the_beginning_of_it(glyphs):
    for name in (glyphs.name, "ice_glyphs", "ice"):
        assert RunFolder.find(name, glyphs.parent).path == glyphs


def test_several_runs_of_that_beginning(glyphs, tmp_path):
    for seed in (0, 1):
        shutil.copytree(glyphs, tmp_path / f"ice-s{seed}")
    with pytest.raises(UserError, match="ice may be ice-s0 or ice-s1; say which"):
        RunFolder.find("ice", tmp_path)


@pytest.mark.parametrize("name", ["rll", "", "x" * 300, "a\0b", ".."])
def test_no_such_run(glyphs, name):
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.find(name, glyphs.parent)


def test_no_runs_at_all(tmp_path):
    with pytest.raises(UserError, match="zoo run makes one"):
        RunFolder.find("ice", tmp_path)


@pytest.mark.parametrize(
    "damage", [b"", b"nothing", np.zeros(3, np.int32).tobytes(), b"\x93NUMPY\x01\x00"]
)
def test_damaged_ranks(glyphs, tmp_path, damage):
    run = downgrade_to_0_1_0(shutil.copytree(glyphs, tmp_path / "run"))
    (run / "ranks.npy").write_bytes(damage)
    with pytest.raises(UserError, match="not the ranks of a run"):
        RunFolder(run).ranks()


def test_ranks_that_are_none(glyphs, tmp_path):
    run = downgrade_to_0_1_0(shutil.copytree(glyphs, tmp_path / "run"))
    np.save(run / "ranks.npy", np.zeros(3, np.int32))
    with pytest.raises(UserError, match="not ranks"):
        RunFolder(run).ranks()
    (run / "ranks.npy").unlink()
    with pytest.raises(UserError, match="missing"):
        RunFolder(run).ranks()


def test_loading_needs_no_network_of_the_user(glyphs):
    image = Image.new("L", (32, 32))
    assert zoo.load(str(glyphs), device=torch.device("cpu"))(image).shape == (128,)
