"""zoo embed: any folder of images becomes an .npz of embeddings with their names."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from finished import QUIET
from replicas import save_photo

import zoo
from zoo.config.schema import Images
from zoo.data import decoding
from zoo.errors import UserError
from zoo.runs import identity
from zoo.runs.folder import RunFolder
from zoo.support import environment
from zoo.trained import files, network


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


@pytest.fixture
def photos(tmp_path):
    """Photographs in folders and not, and all that people have between them."""
    root = tmp_path / "my photos"
    for seed, name in enumerate(["b/2.png", "a.JPG", "b/c d/1.jpg", "b/c d/é.webp"]):
        save_photo(root / name, seed, size=(50 + seed, 44))
    for stray in (".hidden.jpg", "notes.txt", "__MACOSX/x.jpg", "b/.git/x.png"):
        (root / stray).parent.mkdir(parents=True, exist_ok=True)
        (root / stray).write_bytes(b"stray")
    save_photo(tmp_path / "outside" / "secret.png", 9)
    (root / "link.png").symlink_to(tmp_path / "outside" / "secret.png")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "inside.png").symlink_to(root / "b" / "2.png")
    return root


GOOD = ["a.JPG", "b/2.png", "b/c d/1.jpg", "b/c d/é.webp", "inside.png"]


def test_a_folder_becomes_a_file(run, photos, tmp_path, command):
    for name in ("b/broken.jpg", "empty.png"):
        (photos / name).write_bytes(b"broken"[: 0 if "empty" in name else None])
    status, out, said = command("embed", run, photos, "-o", tmp_path / "e.npz", "--device", "cpu")
    assert (status, out) == (0, f"{tmp_path / 'e.npz'}: embeddings 5 x 8\n")
    assert "unreadable  b/broken.jpg: not an image that Pillow reads\n" in said
    assert "unreadable  empty.png: " in said
    assert "2 unreadable files left out, 5 embedded\n" in said
    with np.load(tmp_path / "e.npz", allow_pickle=False) as found:
        assert found["names"].tolist() == GOOD
        embeddings = found["embeddings"]
        about = {key: found[key].item() for key in found if found[key].ndim == 0}
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    model = zoo.load(run)
    np.testing.assert_allclose(embeddings, model([photos / name for name in GOOD]), atol=1e-6)
    assert about == {
        "run": str(run),
        "digest": model.config.digest(),
        "network": model.network_digest(),
        "version": zoo.__version__,
        "folder": str(photos),
    }


def test_in_python_and_in_batches_of_any_size(run, photos):
    model = zoo.load(run)
    found = model.embed_folder(photos, reporter=QUIET)
    small = model.embed_folder(str(photos), batch_size=2, reporter=QUIET)
    assert found.names == small.names == GOOD
    assert found.unreadable == {}
    np.testing.assert_allclose(found.embeddings, small.embeddings, atol=1e-6)


def test_processes_that_decode_change_nothing(run, photos, monkeypatch):
    model = zoo.load(run)
    (photos / "a.JPG").write_bytes(b"broken")
    alone = model.embed_folder(photos, batch_size=2, reporter=QUIET)
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(files, "_workers", lambda device: 2)
    beside = model.embed_folder(photos, batch_size=2, reporter=QUIET)
    assert beside.names == alone.names == GOOD[1:]
    assert beside.unreadable == alone.unreadable
    np.testing.assert_allclose(beside.embeddings, alone.embeddings, atol=1e-6)


def test_processes_cannot_share_one_gpu_of_several(run, photos, tmp_path, command, monkeypatch):
    """Each needs its own; a stand-in for the GPU, as the number is all that matters."""
    monkeypatch.setattr(network, "choose_device", lambda name: torch.device("cpu"))
    said = "device=cuda:1: several processes need device=cuda, a GPU each, or cpu"
    given = ["--device", "cuda:1", "--processes", "2"]
    for name, output in (("embed", "e.npz"), ("index", "index")):
        found = command(name, run, photos, "-o", tmp_path / output, *given)
        assert found[::2] == (2, f"error: {said}\n")
    with pytest.raises(UserError, match=said):
        zoo.load(run, "cuda:1").embed_test(QUIET, processes=2)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("none", "none: does not exist; give a folder of images"),
        ("my photos/a.JPG", "a.JPG: is a file; give a folder of images"),
        ("my photos/b/.git", ": no images in it, only 1 other file"),
        ("~nobody-of-that-name/x", "nobody-of-that-name"),
        ("broken", "broken: none of its images can be read:\n  x.jpg: "),
    ],
)
def test_a_folder_without_images(run, photos, tmp_path, command, folder, said):
    (photos / "b" / ".git" / "x.png").rename(photos / "b" / ".git" / "x.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.jpg").write_bytes(b"broken")
    where = folder if folder.startswith("~") else f"{tmp_path}/{folder}"
    status, out, error = command("embed", run, where, "-o", tmp_path / "e.npz")
    assert (status, out) == (2, "")
    assert said in error
    assert error.startswith("error: ")
    assert not (tmp_path / "e.npz").exists()


@pytest.mark.parametrize("output", ["none/e.npz", "my photos", "my photos/a.JPG/e.npz"])
def test_where_nothing_can_be_written_is_said_before_the_work(
    run, photos, tmp_path, command, monkeypatch, output
):
    monkeypatch.setattr(network, "load", lambda *_: pytest.fail("work was begun"))
    status, _, error = command("embed", run, photos, "-o", f"{tmp_path}/{output}")
    assert status == 2
    assert error.count("\n") == 1


def test_a_name_that_no_folder_can_have(run):
    with pytest.raises(zoo.UserError, match=r"^a\\x00b: "):
        zoo.load(run).embed_folder("a\0b", reporter=QUIET)


def test_a_run_that_is_not_there(photos, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, error = command("embed", "none", photos, "-o", tmp_path / "e.npz")
    assert (status, error.count("\n")) == (2, 1)
    assert "none: not a run folder" in error


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:99", "cuda:1\n"])
def test_a_device_that_is_not_there(run, photos, tmp_path, command, device):
    options = ["-o", tmp_path / "e.npz", "--device", device]
    status, _, error = command("embed", run, photos, *options)
    assert (status, error.count("\n")) == (2, 1)
    assert "device" in error


def test_names_that_would_steer_a_terminal(run, tmp_path, command):
    root = tmp_path / "photos"
    save_photo(root / "good.png", 1)
    (root / "\x1b[31mred\n.png").write_bytes(b"broken")
    status, _, error = command("embed", run, root, "-o", tmp_path / "e.npz")
    assert status == 0
    assert "unreadable  \\x1b[31mred\\n.png: not an image" in error


@pytest.mark.skipif(os.name == "nt" or os.uname().sysname == "Darwin", reason="bytes are text here")
def test_names_that_are_no_text(run, tmp_path):
    name = os.fsdecode(b"\xff.png")
    save_photo(tmp_path / "photos" / "x.png", 1)
    (tmp_path / "photos" / "x.png").rename(tmp_path / "photos" / name)
    model = zoo.load(run)
    found = model.embed_folder(tmp_path / "photos", reporter=QUIET)
    files.save(tmp_path / "e.npz", model, found)
    with np.load(tmp_path / "e.npz", allow_pickle=False) as read:
        assert read["names"].tolist() == [name]


def test_images_that_are_too_large_are_left_out(run, photos, tmp_path, command):
    limit = ["--max-pixels", 51 * 44]
    status, _, error = command("embed", run, photos, "-o", tmp_path / "e.npz", *limit)
    assert status == 0
    assert "2 unreadable files left out, 3 embedded" in error
    assert "--max-pixels (zoo embed" in error


def test_an_image_that_breaks_the_scaling_is_left_out(run, photos, monkeypatch):
    def breaks(image, *_):
        if image.width == 51:
            raise MemoryError("too long")
        return whole(image, *_)

    from zoo.data import pipeline

    whole = pipeline._scaled
    monkeypatch.setattr(pipeline, "_scaled", breaks)
    found = zoo.load(run).embed_folder(photos, reporter=QUIET)
    assert found.unreadable == {"a.JPG": "too long"}


def test_images_of_many_sizes_for_a_run_that_scales_nothing(run, photos):
    model = zoo.load(run)
    model.config = model.config.model_copy(update={"images": Images()})
    with pytest.raises(
        zoo.UserError, match=r"a\.JPG is 51x44 pixels and b/2\.png is 50x44; the run"
    ):
        model.embed_folder(photos, reporter=QUIET)


@pytest.fixture(scope="module")
def diverged(run_made_once, tmp_path_factory):
    """A run whose checkpoint has a weight that is NaN."""
    folder = shutil.copytree(run_made_once, tmp_path_factory.mktemp("diverged") / "run")
    state = RunFolder(folder).load_checkpoint()
    state["embedder"]["heads.0.weight"][0, 0] = float("nan")
    RunFolder(folder).save_checkpoint(state)
    result = json.loads((folder / "result.json").read_text())
    result["files"] = identity.digests(folder, result["files"])
    (folder / "result.json").write_text(json.dumps(identity.seal(result)))
    return folder


@pytest.mark.parametrize(
    "words", ["embed RUN PHOTOS -o OUT.npz", "index RUN PHOTOS -o OUT", "export RUN -o OUT.pt2"]
)
def test_weights_that_are_nan_are_refused(diverged, photos, tmp_path, command, words):
    places = {"RUN": str(diverged), "PHOTOS": str(photos)}
    before = sorted(tmp_path.iterdir())
    arguments = [places.get(word, word.replace("OUT", f"{tmp_path}/out")) for word in words.split()]
    status, out, error = command(*arguments)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "its network has weights that are NaN or infinite, first in heads.0.weight" in error
    assert sorted(tmp_path.iterdir()) == before


def test_weights_that_are_nan_are_no_network(diverged):
    with pytest.raises(zoo.UserError, match="weights that are NaN or infinite"):
        zoo.load(diverged)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_image_is_named_whose_embedding_is_no_number(run, photos, monkeypatch, value):
    model = zoo.load(run, device="cpu")
    whole = model._as_searched

    def breaks(pixels):
        found = whole(pixels)
        found[-1] = value
        return found

    monkeypatch.setattr(model, "_as_searched", breaks)
    with pytest.raises(zoo.UserError, match=r"NaN or infinite embeddings, first for b/2\.png"):
        model.embed_folder(photos, batch_size=2, reporter=QUIET)
    with pytest.raises(zoo.UserError, match="NaN or infinite embeddings, first for image 4"):
        model([photos / name for name in GOOD])
    with pytest.raises(zoo.UserError, match="NaN or infinite embeddings, first for image 11"):
        model.embed_test(QUIET)


def test_a_write_that_fails_leaves_the_old_file(run, photos, tmp_path, command, monkeypatch):
    (tmp_path / "e.npz").write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, error = command("embed", run, photos, "-o", tmp_path / "e.npz")
    assert status == 1
    assert "no room left on the disk" in error
    assert (tmp_path / "e.npz").read_text() == "old"


def test_an_image_counts_by_its_ending():
    assert {".jpg", ".png", ".webp", ".tif"} <= set(decoding.extensions())


def test_the_digest_is_of_all_that_an_embedding_depends_on(run):
    model, same = zoo.load(run), zoo.load(run)
    assert model.network_digest() == same.network_digest()
    same.embedder.heads[0].weight.data[0, 0] += 1
    assert model.network_digest() != same.network_digest()
    same = zoo.load(run)
    images = model.config.images.model_copy(update={"crop": 31})
    same.config = model.config.model_copy(update={"images": images})
    assert model.network_digest() != same.network_digest()
