"""Images decoded once: the same pixels as without, whatever stops or spoils the making of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from zoo import UserError, registry, runner
from zoo.config import load
from zoo.config.schema import Images
from zoo.data import cache, splits, survey
from zoo.data.pipeline import evaluation_batches, same_planes, training_batches
from zoo.datasets.m_per_class import MPerClassSampler
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training import step as training_step

QUIET = Reporter(quiet=True)
SPLITS = ("train", "test")
META = torch.device("meta")


class Photographs:
    """Random pictures of many sizes; it notes for which it is asked, and may do something then."""

    def __init__(self, count=40, planes=3, fingerprint="first", events=None):
        rng = np.random.default_rng(0)
        shapes = [(20 + i % 7, 31 - i % 11, *([3] if planes == 3 else [])) for i in range(count)]
        self.pictures = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
        self.labels = np.arange(count) % 4
        self.class_names = list("abcd")
        self.files = [f"{i}.jpg" for i in range(count)]
        self._fingerprint = fingerprint
        self.asked, self.events = [], events or {}

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.asked.append(index)
        self.events.get(index, lambda: None)()
        return Image.fromarray(self.pictures[index]), int(self.labels[index])

    def fingerprint(self):
        return self._fingerprint

    def verify(self):
        return ["'3.jpg' is blurred"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def keep(dataset, side=24, workers=0, reporter=QUIET):
    (kept,) = cache.decoded_once([dataset], side, workers=workers, reporter=reporter)
    return kept


def train(dataset, images, start=0, **options):
    sampler = MPerClassSampler(dataset.labels, 4, 2, seed=5)
    for _, _ in zip(range(start), sampler, strict=False):
        pass
    return list(training_batches(dataset, images, sampler, seed=5, start=start, stop=5, **options))


def evaluated(dataset, images, **options):
    return torch.cat(same_planes([*evaluation_batches(dataset, images, batch_size=7, **options)]))


def same(one, other):
    return len(one) == len(other) and all(
        a[:3] == b[:3] and torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        for a, b in zip(one, other, strict=True)
    )


# ---- the pixels


CUTS = [
    {},
    {"crop": 24},
    {"crop": 20},
    {"crop": 20, "mirror": True},
    {"crop": 21, "pad": 3},
    {"crop": 21, "pad": 30, "mirror": True},  # squares with nothing of the image in them
    {"crop": 29, "pad": 3, "mirror": True},  # at test, the image is enlarged
    {"crop": 16, "random_crop": "resized", "mirror": True},
    {"mirror": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("planes", [1, 3])
def test_they_are_those_of_the_ordinary_path(cut, planes):
    images = Images(resize=24, **cut)
    plain = Photographs(planes=planes)
    kept = keep(Photographs(planes=planes))
    wanted = train(plain, images)
    assert same(train(kept, images), wanted)
    assert same(train(kept, images, start=3), wanted[3:])
    wanted = evaluated(plain, images)
    assert torch.equal(evaluated(kept, images), wanted)
    assert len(wanted) == 40


@pytest.mark.parametrize("first", ["gray", "colour", "deep"])
def test_gray_among_colour_is_kept_in_colour(first):
    """Whichever comes first; all modes that Pillow knows become one of the two."""

    def mixed():
        data = Photographs(100)
        gray = range(70) if first == "gray" else range(60, 100)
        for i in gray if first != "deep" else range(0, 100, 2):
            data.pictures[i] = data.pictures[i][..., 0]
        if first == "deep":
            data.pictures[::2] = [p.astype(np.uint16) * 257 for p in data.pictures[::2]]
        return data

    kept = keep(mixed())
    assert kept.images.shape == (100, 3, 24, 24)
    images = Images(resize=24, crop=20, mirror=True)
    assert torch.equal(evaluated(kept, images), evaluated(mixed(), images))
    for one, other in zip(train(kept, images), train(mixed(), images), strict=True):
        assert torch.equal(one.images, other.images.expand(-1, 3, -1, -1))


def test_workers_change_nothing():
    images = Images(resize=24, crop=21, pad=3, mirror=True)
    kept, plain = keep(Photographs(), workers=2), Photographs()
    assert not kept.dataset.asked[1:]  # but for a look at the first, the workers decoded
    wanted = train(plain, images)
    assert same(train(kept, images, workers=2), wanted)
    assert torch.equal(evaluated(kept, images, workers=2), evaluated(plain, images))


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("planes", [1, 3])
def test_they_are_the_same_if_cut_on_the_device(cut, planes):
    images = Images(resize=24, **cut)
    kept = keep(Photographs(planes=planes))
    moved = train(kept, images, device=META)
    for batch, wanted in zip(moved, train(kept, images), strict=True):
        whole = cut.get("random_crop") != "resized" and cut.get("crop") != 29
        assert batch.images.shape[-1] == (24 if whole or cut["crop"] == 29 else 16)
        pixels, labels = batch.on(torch.device("cpu"))
        assert torch.equal(pixels, wanted.images)
        assert torch.equal(labels, wanted.labels)
        pixels, _ = batch.on(META)  # has no values: to look at one would fail, as it would wait
        assert pixels.shape == wanted.images.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_cuts_without_being_waited_for():
    images = Images(resize=24, crop=21, pad=3, mirror=True)
    kept = keep(Photographs())
    batches = train(kept, images, device=torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    found = [batch.on(torch.device("cuda"))[0] for batch in batches]
    torch.cuda.set_sync_debug_mode("default")
    for pixels, wanted in zip(found, train(kept, images), strict=True):
        assert torch.equal(pixels.cpu(), wanted.images)


def test_all_else_is_the_data_sets():
    data = Photographs()
    kept = keep(data)
    assert kept.labels is data.labels
    assert kept.class_names is data.class_names
    assert (kept.fingerprint(), kept.verify(), kept.files) == ("first", data.verify(), data.files)
    assert not hasattr(kept, "nothing")
    image, label = kept[5]
    assert (image.size, image.mode, label) == ((24, 24), "RGB", 1)


def test_a_copy_for_a_worker_holds_no_pixels():
    kept = keep(Photographs(400), side=32)
    kept.dataset.pictures = []
    data = pickle.dumps(kept)
    assert len(data) < 20_000 < kept.images.numel()
    assert torch.equal(pickle.loads(data).images, kept.images)


# ---- once


def test_they_are_decoded_once(folder):
    keep(Photographs())
    again = Photographs()
    keep(again)
    assert not again.asked
    assert [p.suffix for p in sorted(folder.iterdir())] == [".lock", ".crc32", ".npy"]
    other = Photographs(fingerprint="second")
    assert not torch.equal(keep(other).images[:, :, 0, 0], keep(again, side=23).images[:, :, 0, 0])
    assert len(other.asked) == 41
    assert len(again.asked) == 41
    assert len(list(folder.glob("*.npy"))) == 3
    assert np.load(next(folder.glob("*-23-*.npy"))).shape == (40, 3, 23, 23)


def interrupt():
    raise KeyboardInterrupt


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_stopped_goes_on(folder):
    """By Ctrl-C, behind 70 images of which 64 are written; rubbish behind them is cut off."""
    wanted = keep(Photographs(200, fingerprint="other")).images
    with pytest.raises(KeyboardInterrupt):
        keep(Photographs(200, events={70: interrupt}))
    (part,) = folder.glob("*.part")
    assert np.load(part).shape == (64, 3, 24, 24)
    with part.open("ab") as file:
        file.write(b"rubbish")
    again = Photographs(200)
    assert torch.equal(keep(again).images, wanted)
    assert again.asked == [0, *range(64, 200)]
    assert not part.exists()


@pytest.mark.skipif(os.name == "nt", reason="needs fork")
def test_what_was_killed_goes_on_from_what_is_sure(folder, monkeypatch):
    wanted = keep(Photographs(200)).images
    shutil.rmtree(folder)
    monkeypatch.setattr(cache, "_UNTIL_SURE", 64)
    dying = Photographs(200, events={150: die})
    child = multiprocessing.get_context("fork").Process(target=keep, args=(dying,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    again = Photographs(200)
    assert torch.equal(keep(again).images, wanted)
    assert again.asked == [0, *range(128, 200)]


def test_two_at_once_make_it_once():
    inside, go_on, said = threading.Event(), threading.Event(), Said()

    def wait():
        inside.set()
        go_on.wait(60)

    both = [Photographs(100, events={50: wait}), Photographs(100)]
    first = threading.Thread(target=keep, args=(both[0],))
    first.start()
    assert inside.wait(60)
    second = threading.Thread(target=keep, args=(both[1],), kwargs={"reporter": said})
    second.start()
    assert said.something.wait(60)
    go_on.set()
    first.join()
    second.join()
    (text,) = said.texts
    assert text.endswith(".npy: waiting for another process that is writing it")
    assert both[1].asked == [0]


class Said(Reporter):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__(quiet=True)
        self.texts, self.something = [], threading.Event()

    def say(self, text):
        self.texts.append(text)
        self.something.set()


@pytest.mark.parametrize("spoil", [b"", b"rubbish" * 100, None])
def test_a_damaged_file_is_made_again(folder, spoil):
    wanted = keep(Photographs()).images.clone()
    (path,) = folder.glob("*.npy")
    data = path.read_bytes()
    path.unlink()  # the tensor's file lives on
    path.write_bytes(data[:-1] if spoil is None else spoil)
    assert torch.equal(keep(Photographs()).images, wanted)


@pytest.mark.parametrize("suffix", [".npy", ".part"])
@pytest.mark.parametrize(("place", "byte"), [(10, b'"'), (11, b"["), (60, b"9"), (8, b"\xff")])
def test_a_damaged_header_is_made_again(folder, suffix, place, byte):
    wanted = keep(Photographs()).images.clone()
    (path,) = folder.glob("*.npy")
    data = path.read_bytes()
    path.unlink()
    path.with_suffix(suffix).write_bytes(data[:place] + byte + data[place + 1 :])
    assert torch.equal(keep(Photographs()).images, wanted)


def test_a_folder_in_the_place_of_the_part_is_said(folder):
    keep(Photographs())
    (path,) = folder.glob("*.npy")
    path.unlink()
    path.with_suffix(".part").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        keep(Photographs())


def damage(path, place):
    """Change the file behind the back of everybody: neither size nor time nor header tells."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


USES = {
    "train": lambda kept: train(kept, Images(resize=24, crop=20)),
    "on the device": lambda kept: train(kept, Images(resize=24, crop=20), device=META),
    "test": lambda kept: evaluated(kept, Images(resize=24)),
    "resized crop": lambda kept: train(
        kept, Images(resize=24, crop=20, random_crop="resized"), workers=1
    ),
    "in workers": lambda kept: evaluated(kept, Images(resize=24), workers=2),
    "one by one": lambda kept: [kept[i] for i in range(len(kept))],
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("suffix", [".npy", ".crc32"])
def test_a_flipped_bit_is_noticed_when_the_image_is_used_and_mended_at_the_next_start(
    folder, use, suffix
):
    wanted = keep(Photographs()).images.clone()
    (path,) = folder.glob("*.npy")
    header = 128
    damage(path.with_suffix(suffix), header + 1728 * 5 + 3 if suffix == ".npy" else 4 * 5)
    kept = keep(Photographs())
    assert len(kept) == 40
    with pytest.raises(UserError, match=r"image 5 in '.*npy' is not what was written .* run again"):
        USES[use](kept)
    again = keep(Photographs())
    assert torch.equal(again.images, wanted)
    USES[use](again)


def test_exchanged_images_are_noticed(folder):
    kept = keep(Photographs())
    pixels = np.load(kept.path)
    pixels[[3, 4]] = pixels[[4, 3]]
    kept.path.write_bytes(kept.path.read_bytes()[:128] + pixels.tobytes())
    with pytest.raises(UserError, match="image 3 in"):
        evaluated(keep(Photographs()), Images(resize=24))


def test_an_image_is_compared_once_by_whoever_reads_it_first(monkeypatch):
    kept = keep(Photographs())
    copy = multiprocessing.get_context("fork")
    child = copy.Process(target=lambda: kept.check_pixels(range(30)))
    child.start()
    child.join()
    asked = []
    monkeypatch.setattr(cache, "_sum", lambda image: asked.append(1) or zlib.crc32(image.numpy()))
    evaluated(kept, Images(resize=24))
    evaluated(kept, Images(resize=24))
    assert len(asked) == 10


def test_checksums_that_are_lost_cost_a_new_start(folder):
    wanted = keep(Photographs()).images.clone()
    (sums,) = folder.glob("*.crc32")
    sums.unlink()
    again = Photographs()
    assert torch.equal(keep(again).images, wanted)
    assert len(again.asked) == 41


# ---- zoo data verify


def swap(path, value):
    """Change the content of an image, but neither its size nor a time that counts."""
    Image.new("RGB", (40, 40), (value, 0, 7)).save(path, compress_level=0)


def test_verify_compares_what_is_kept_with_the_images(tmp_path, folder):
    root = tmp_path / "photographs"
    for i, inner in enumerate(("train/a", "train/b", "test/c", "test/d")):
        for j in range(3):
            (root / inner).mkdir(parents=True, exist_ok=True)
            swap(root / inner / f"{j}.png", 3 * i + j)
    both = [registry.build("datasets", "image_folder", root=str(root), split=s) for s in SPLITS]
    kept = cache.decoded_once(both, 24, workers=0, reporter=QUIET)
    cache.decoded_once(both, 20, workers=0, reporter=QUIET)

    def doubts():
        found = survey.survey("image_folder", str(root)).findings
        return [one for one in found if one.severity != "note"]

    assert not doubts()
    damage(kept[0].path, 128 + 1728 * 2)
    (finding,) = doubts()
    assert (finding.severity, finding.where) == ("warning", str(kept[0].path))
    assert finding.what.endswith("decodes them again; by number: 2")
    assert not kept[0].path.exists()
    assert len(list(folder.glob("*.npy"))) == 3
    assert not doubts()


def test_verify_sees_images_that_a_fingerprint_does_not_show():
    """That of the benchmarks is of names and sizes alone."""
    data = Photographs()
    kept = keep(data)
    assert not list(cache.compare(data))
    data.pictures[7] = 255 - data.pictures[7]
    (finding,) = cache.compare(data)
    assert finding.what.endswith("by number: 7")
    again = keep(data)
    assert not torch.equal(again.images[7], kept.images[7])


# ---- what is refused


def test_a_disk_without_room_is_said_before(folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 100_000))
    two = [Photographs(), Photographs(fingerprint="second")]
    with pytest.raises(UserError) as error:
        cache.decoded_once(two, 24, workers=0, reporter=QUIET)
    assert str(error.value) == (
        f"images.cache needs 138.2 kB in {str(folder)!r}, where 100.0 kB are free; make room, set "
        "ZOO_CACHE to another folder, or set images.cache=false"
    )
    assert not folder.exists()
    assert keep(two[0])  # one fits


def test_a_disk_that_fills_up_is_said_and_left_as_it_was(folder):
    """The system's limit on the size of a file ends it in the midst of a write."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(
            UserError, match=r"\.part': cannot be written \(File too large\); make ro"
        ):
            keep(Photographs())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.suffix for p in folder.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(
        UserError,
        match=r"': cannot be written \(.*\); make room, set .*, or set images\.cache=false$",
    ):
        keep(Photographs())


def test_a_broken_image_is_named_and_nothing_is_left(folder):
    def spoilt():
        raise UserError("'37.jpg' cannot be used: truncated")

    for workers in (0, 1):
        with pytest.raises(UserError, match=r"^'37\.jpg' cannot be used: truncated$"):
            keep(Photographs(events={37: spoilt}), workers=workers)
        assert [p.suffix for p in folder.iterdir()] == [".lock"]


def test_images_that_it_could_not_hold_are_refused():
    two_planes = Photographs()
    two_planes.images = torch.zeros(40, 2, 24, 24, dtype=torch.uint8)
    with pytest.raises(UserError, match=r"images of 2 planes, torch\.uint8; only RGB and"):
        keep(two_planes)


# ---- a run


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for split, classes in (("train", 6), ("test", 3)):
        for c in range(classes):
            inner = root / split / f"{split}{c}"
            inner.mkdir(parents=True)
            for i in range(3):
                pixels = rng.integers(0, 256, (40 + i, 44 - c, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(inner / f"{i}.jpg")
    return root


def settings(photographs, tmp_path, cached):
    return load(
        "ice_folder",
        [
            f"dataset.root={photographs}",
            "model.backbone={name: convnet, width: 4}",
            "model.embedding_size=8",
            "images={resize: 36, crop: 32, mirror: true}",
            f"images.cache={cached}",
            "sampler={name: m_per_class, classes: 3, per_class: 2}",
            "train={iterations: 6, checkpoint_every: 1, log_every: 1}",
            "evaluate.every=2",
            "device=cpu",
            f"output={tmp_path}",
        ],
    )


@pytest.mark.slow
def test_a_run_is_the_same_with_and_without_even_if_it_changes_halfway(
    photographs, tmp_path, monkeypatch, folder
):
    plain = settings(photographs, tmp_path / "plain", "false")
    cached = settings(photographs, tmp_path / "cached", "true")
    mixed = [settings(photographs, tmp_path / "mixed", c) for c in ("false", "true")]
    assert plain.run_name() == cached.run_name()
    runner.run(plain, reporter=QUIET)
    assert not folder.exists()
    runner.run(cached, reporter=QUIET)
    assert len(list(folder.glob("ImageFolder-36-*.npy"))) == 2
    step = training_step.Trainer.step

    def stopped(self, batch):
        if batch.iteration == 3:
            raise MemoryError
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(training_step.Trainer, "step", stopped)
        with pytest.raises(MemoryError):
            runner.run(mixed[0], reporter=QUIET)
    runner.run(mixed[1], reporter=QUIET)
    folders = [RunFolder(f"{c.output}/{c.run_name()}") for c in (plain, cached, mixed[0])]
    assert folders[0].metrics() == folders[1].metrics() == folders[2].metrics()
    first, *others = [f.load_checkpoint()["embedder"] for f in folders]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_a_missing_image_names_itself_whoever_finds_it(photographs, tmp_path, folder):
    copy = tmp_path / "copy"
    shutil.copytree(photographs, copy)
    checked = settings(copy, tmp_path, "true")
    data = splits.build_dataset(checked, "test")
    (copy / "test" / "test1" / "2.jpg").unlink()
    with pytest.raises(UserError, match=r"2\.jpg' cannot be used: No such file"):
        keep(data)
