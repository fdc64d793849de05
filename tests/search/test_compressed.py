"""Indexes in files: the lists are those of FAISS, and a build that is killed goes on."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from finished import QUIET
from killed import killed_at_every_step
from PIL import Image

import zoo
from zoo.progress import Reporter
from zoo.runs import identity
from zoo.search import compressed, compressing, parts
from zoo.search import folder as search_folder
from zoo.search.compressed import Compressed
from zoo.search.neighbours import TARGET_RECALL, Found, Neighbours, Trial, raised, unit
from zoo.support import environment
from zoo.trained.files import Gathered

faiss = pytest.importorskip("faiss")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="FAISS keeps no lists in files")

COUNT = 260  # images
COMPRESSED = 3000  # vectors


def clustered(count, size):
    """Return unit vectors in groups, float16."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(count // 20, size))
    return unit(centres[np.arange(count) % len(centres)] + rng.normal(size=(count, size))).astype(
        np.float16
    )


class Written(NamedTuple):
    """An index in files, and FAISS's index without vectors that it was made with."""

    empty: Any
    index: bytes
    lists: Path
    vectors: np.ndarray

    def read(self, refine):
        vectors = self.vectors if refine else None
        with self.lists.open("rb") as lists:
            return Compressed.read(io.BytesIO(self.index), lists, vectors, refine)


def written(vectors, folder):
    index, file = compressing.trained(vectors), io.BytesIO()
    with (folder / "lists").open("wb") as lists:
        sizes = compressing.write_lists(index, vectors, lists, folder, QUIET)
    compressing.write_index(index, sizes, file)
    return Written(index, file.getvalue(), folder / "lists", vectors)


@pytest.fixture(scope="module")
def made_of_parts(tmp_path_factory):
    """An index whose lists were put together from many parts, some lists at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed, "PART_BYTES", 4 * 18 * 377)
        patch.setattr(compressing, "_AT_A_TIME", 1000)
        vectors = clustered(COMPRESSED, 18)  # 18 is no multiple of four
        return written(vectors, tmp_path_factory.mktemp("lists"))


@pytest.fixture(scope="module")
def vectors(made_of_parts):
    return made_of_parts.vectors


@pytest.fixture
def index(made_of_parts):
    return made_of_parts.read(refine=200)


def test_the_lists_are_those_that_faiss_would_keep_in_memory(made_of_parts, vectors):
    in_memory = faiss.clone_index(made_of_parts.empty)
    in_memory.add(unit(vectors))
    indexes = (made_of_parts.read(0)._index, in_memory)
    mine, theirs = (faiss.extract_index_ivf(one) for one in indexes)
    for number in range(theirs.nlist):
        length = theirs.invlists.list_size(number)
        assert mine.invlists.list_size(number) == length
        for get, each in (("get_ids", 1), ("get_codes", theirs.code_size)):
            lists = (getattr(one.invlists, get)(number) for one in (mine, theirs))
            one, other = (faiss.rev_swig_ptr(of, length * each) for of in lists)
            assert (one == other).all()
    assert [path.name for path in made_of_parts.lists.parent.iterdir()] == ["lists"]
    assert made_of_parts.lists.stat().st_size == COMPRESSED * (5 + 8)


def exactly(vectors, queries, k):
    """Return positions by cosine in float64, ties by position."""
    wide = [each.astype(np.float64) for each in (queries, vectors)]
    wide = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in wide]
    return np.argsort(-(wide[0] @ wide[1].T).round(12), axis=1, kind="stable")[:, :k]


def test_the_recall_that_is_told_is_that_of_a_search(vectors, index):
    trials = index.tune(vectors)
    assert trials[-1].recall >= TARGET_RECALL > max(trial.recall for trial in trials[:-1])
    assert index.value == trials[-1].value
    own = np.linspace(0, COMPRESSED - 1, 500).astype(int)
    positions = index.search(vectors[own].astype(np.float32), 11).positions
    wanted = exactly(vectors, vectors[own], 11)
    hits = [len({*a} & {*b} - {i}) for a, b, i in zip(positions, wanted, own, strict=True)]
    assert np.mean(hits) / 10 == pytest.approx(trials[-1].recall, abs=1e-3)


def test_with_all_lists_and_all_candidates_it_is_exact(vectors, index):
    index.value, index.refine = index._lists, len(vectors)
    near = index.search(vectors[:30].astype(np.float32), 40)
    assert (near.positions == exactly(vectors, vectors[:30], 40)).all()
    assert near.cosines[:, 0] == pytest.approx(1, abs=1e-6)
    assert (np.diff(near.cosines, axis=1) <= 0).all()


def test_refining_finds_more(vectors, index, made_of_parts):
    coarse = made_of_parts.read(refine=0)
    assert coarse.tune(vectors)[-1].recall < TARGET_RECALL - 0.1
    assert index.tune(vectors)[-1].recall >= TARGET_RECALL
    found = coarse.search(vectors[:5].astype(np.float32), 3)
    assert found.positions.shape == (5, 3)
    assert (abs(found.cosines) <= 1).all()


def test_a_recall_that_rises_no_more_ends_the_search_for_a_value():
    own = np.arange(1)

    def search(value):
        hits = min(5, value)
        return Found(np.ones((1, 11)), np.array([[0] + [1] * hits + [0] * (10 - hits)]))

    values = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    trials = raised(values, search, own, np.ones(1), may_stall=True)
    assert trials == [(1, 0.1), (2, 0.2), (4, 0.4), (8, 0.5), (16, 0.5), (32, 0.5), (64, 0.5)]
    assert len(raised(values, search, own, np.ones(1))) == 9


def test_more_neighbours_than_a_list_has(vectors, index):
    index.value = 1
    positions = index.search(vectors[:3].astype(np.float32), 2000).positions
    assert (positions >= 0).all()
    assert all(len({*row}) == 2000 for row in positions)
    assert index.search(vectors[:0].astype(np.float32), 5).positions.shape == (0, 5)


def test_equal_vectors_and_zeros(tmp_path):
    vectors = np.zeros((300, 3), np.float16)
    vectors[:200] = (0, 1, 0)
    found = written(vectors, tmp_path).read(200)
    found.tune(vectors)
    near = found.search(np.eye(3, dtype=np.float32)[1:2], 12)
    assert near.cosines.tolist() == [[1.0] * 12]


def test_positions_that_lead_out_are_refused(vectors, made_of_parts, tmp_path):
    size = made_of_parts.lists.stat().st_size
    (tmp_path / "lists").write_bytes(b"\x7f" * size)
    broken = made_of_parts._replace(lists=tmp_path / "lists").read(200)
    with pytest.raises(zoo.UserError, match="the lists of the index are damaged"):
        broken.search(vectors[:1].astype(np.float32), 5)


# --- parts


def embedded(root, names, asked):
    """Embed files: each name is a number; those that end in 7 cannot be read."""
    asked.append(len(names))
    kept = [name for name in names if not name.endswith("7")]
    rows = np.array([[float(name), 1, 0, 0] for name in kept], np.float32).reshape(-1, 4)
    return Gathered(root, kept, rows, dict.fromkeys({*names} - {*kept}, "no image"))


def in_parts(root, place, asked, made_by="network", reporter=QUIET):
    names = sorted(path.name for path in root.iterdir())
    embed = partial(embedded, root, asked=asked)
    return parts.embed_in_parts(place, root, names, 4, made_by, embed, reporter)


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """A folder of 25 files, embedded ten at a time, and a place."""
    monkeypatch.setattr(parts, "IN_A_PART", 10)
    (tmp_path / "place").mkdir()
    (tmp_path / "numbers").mkdir()
    for number in range(25):
        (tmp_path / "numbers" / f"{number:02}").write_text("old")
    return tmp_path / "numbers", tmp_path / "place"


def vectors_of(found):
    return parts.vectors_in(found.file, 4)[:, 0].tolist()


WANTED = [number for number in range(25) if number % 10 != 7]


def test_parts_make_the_whole(numbers):
    asked = []
    found = in_parts(*numbers, asked)
    assert asked == [10, 10, 5]
    assert vectors_of(found) == WANTED
    assert found.names == [f"{number:02}" for number in WANTED]
    assert found.unreadable == {"07": "no image", "17": "no image"}


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("nothing", []),
        ("a file is replaced", [10, 5]),
        ("a file is gone", [10, 4]),
        ("another network", [10, 10, 5]),
        ("a part is not whole", [10, 10, 5]),
        ("something was written after the last part", []),
        ("a flipped bit", [10, 10, 5]),
    ],
)
def test_what_is_embedded_again(numbers, change, again):
    root, place = numbers
    vectors = in_parts(root, place, []).file
    if change == "a file is replaced":
        (root / "11").write_text("newer")
    elif change == "a file is gone":
        (root / "11").unlink()
    elif change == "a part is not whole":
        os.truncate(vectors, vectors.stat().st_size - 1)
    elif change == "something was written after the last part":
        vectors.write_bytes(vectors.read_bytes() + b"part")
    elif change == "a flipped bit":
        (place / "parts.json").write_text(
            (place / "parts.json").read_text().replace('count": 9', 'count": 8', 1)
        )
    asked = []
    found = in_parts(root, place, asked, "other" if change == "another network" else "network")
    assert asked == again
    assert vectors_of(found) == [n for n in WANTED if n != 11 or change != "a file is gone"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_kill_costs_no_more_than_a_part(numbers):
    root, place = numbers
    left = []
    for _ in killed_at_every_step(place, lambda: in_parts(root, place, [])):
        there = parts.unfinished(place)
        left.append(there.count if there else 0)
    assert left == sorted(left)
    assert {*left} >= {0, 9, 18}
    asked = []
    assert vectors_of(in_parts(root, place, asked)) == WANTED
    assert asked == []


def test_the_disk_must_have_room(numbers):
    tmp_path = numbers[1]
    parts.check_room(tmp_path / "new" / "index", 1)
    with pytest.raises(zoo.UserError, match="the index needs .* make room or name another disk"):
        parts.check_room(tmp_path, 1 << 60)
    in_parts(*numbers, [])
    free = SimpleNamespace(free=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.shutil, "disk_usage", lambda _: free)
        parts.check_room(tmp_path, 100 + 23 * 4 * 2)  # what is there counts
        with pytest.raises(zoo.UserError, match="make room"):
            parts.check_room(tmp_path, 101 + 23 * 4 * 2)


# --- from images to an index


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images in folders, of noise around a colour, and one that cannot be read."""
    root = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        path = root / f"{number % 13:02}" / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        colour = rng.integers(0, 200, 3)
        Image.fromarray((colour + rng.integers(0, 55, (36, 40, 3))).astype(np.uint8)).save(path)
    (root / "00" / "broken.png").write_bytes(b"broken")
    return root


@pytest.fixture(scope="module")
def made(run, photos, tmp_path_factory):
    place = tmp_path_factory.mktemp("made") / "index"
    return zoo.index.build(run, photos, place, kind="ivfpq", device="cpu", reporter=QUIET)


def files_in(folder):
    return sorted(p.name.split("-")[0] for p in folder.iterdir() if p.name != ".meta.json.lock")


def part(folder, which):
    return folder / json.loads((folder / "meta.json").read_text())[which]["name"]


def meta_with(folder, change):
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(identity.seal(meta)))


def test_the_command_builds_and_searches(run, photos, made, tmp_path, command):
    place = tmp_path / "index"
    status, out, _ = command("index", run, photos, "-o", place, "--kind", "ivfpq")
    assert status == 0
    first, *trials = out.splitlines()
    assert first == f"{place}: {COUNT} images, ivfpq, d 8"
    assert all(line.startswith("nprobe") and "  recall@10 " in line for line in trials)
    assert trials[-1].endswith("  chosen")
    assert files_in(place) == ["index", "lists", "meta.json", "names", "vectors"]
    query = photos / "03" / "003.png"
    status, out, _ = command("search", place, query, "-k", 3, "--verify")
    assert status == 0
    assert "1  1.0000  03/003.png (itself)" in out
    again = zoo.index.open(place, device="cpu")
    assert again.search(query, 5) == made.search(query, 5)
    assert again.meta.recall_at_10 == made.meta.recall_at_10
    assert made.unreadable.keys() == {"00/broken.png"}


def test_it_finds_what_a_flat_index_finds(run, photos, made, tmp_path):
    flat = zoo.index.build(run, photos, tmp_path / "i", kind="flat", device="cpu", reporter=QUIET)
    queries = [photos / name for name in made.names[::9]]
    pairs = zip(made.search(queries, 10), flat.search(queries, 10), strict=True)
    shares = [len({h.name for h in a} & {h.name for h in b}) / 10 for a, b in pairs]
    assert np.mean(shares) > 0.9
    assert flat.names == made.names


def test_what_refining_could_add_is_said(run, photos, tmp_path, command, monkeypatch):
    monkeypatch.setattr(Compressed, "tune", lambda *_: [Trial(1, 0.5)])
    status, out, _ = command("index", run, photos, "-o", tmp_path / "i", "--kind", "ivfpq")
    assert status == 0
    assert out.endswith("95 %; a larger --refine finds more, and --kind flat finds all\n")


def test_without_refining_no_embeddings_are_kept(run, photos, tmp_path, command):
    place = tmp_path / "index"
    options = ["--kind", "ivfpq", "--refine", "0"]
    assert command("index", run, photos, "-o", place, *options)[0] == 0
    assert files_in(place) == ["index", "lists", "meta.json", "names"]
    status, out, _ = command("search", place, photos / "03" / "003.png", "-k", 3)
    assert status == 0
    assert len(out.splitlines()) >= 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "ivfpq"], "kind ivfpq needs 256 images or more, and there are 20; use --kind"),
        (["--refine", "5"], "refine is 5, and is for kind ivfpq only; give --kind ivfpq"),
        (["--kind", "flat", "--refine", "0"], "refine is 0, and is for kind ivfpq only"),
    ],
)
def test_what_is_refused(run, photos, tmp_path, command, options, said):
    status, out, error = command("index", run, photos / "03", "-o", tmp_path / "i", *options)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert said in error
    assert not (tmp_path / "i").exists()


def test_where_faiss_keeps_no_lists_in_files(run, photos, tmp_path, monkeypatch):
    monkeypatch.delattr(faiss, "OnDiskInvertedLists")
    with pytest.raises(zoo.UserError, match="FAISS keeps no lists in files on this system"):
        zoo.index.build(run, photos, tmp_path / "i", kind="ivfpq", reporter=QUIET)


def test_auto_takes_files_if_memory_is_too_small(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "memory", lambda: 2 * 4 * COUNT * 8)
    made = zoo.index.build(run, photos, tmp_path / "i", device="cpu", reporter=QUIET)
    assert made.kind == "ivfpq"


def test_the_same_images_by_two_parts(run, photos, made, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "IN_A_PART", 150)
    place = tmp_path / "i"
    again = zoo.index.build(run, photos, place, kind="ivfpq", device="cpu", reporter=QUIET)
    assert again.names == made.names
    assert part(place, "vectors").read_bytes() == part(made.folder, "vectors").read_bytes()


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_build_that_was_interrupted_goes_on(run, photos, made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "IN_A_PART", 150)
    build = partial(zoo.index.build, run, photos, tmp_path / "i", kind="ivfpq", device="cpu")

    with monkeypatch.context() as patch:
        patch.setattr(compressing, "trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(reporter=QUIET)
    assert files_in(tmp_path / "i") == ["parts.json", "vectors"]
    with pytest.raises(zoo.UserError, match="has no index; zoo index makes one"):
        zoo.index.open(tmp_path / "i")
    again = build(reporter=Reporter())
    assert f"{COUNT} of {COUNT + 1} images are embedded already" in capsys.readouterr().err
    assert again.names == made.names
    assert files_in(tmp_path / "i") == files_in(made.folder)


def test_another_kind_removes_what_was_unfinished(run, photos, tmp_path, monkeypatch):
    few = photos / "03"
    (tmp_path / "i").mkdir()
    state = parts.Unfinished(vectors=f"vectors-{'0' * 16}.f16", made_by="x", size=8, parts=[])
    (tmp_path / "i" / state.vectors).write_bytes(b"")
    parts._save(tmp_path / "i", state)
    zoo.index.build(run, few, tmp_path / "i", device="cpu", reporter=QUIET)
    assert files_in(tmp_path / "i") == ["index", "meta.json", "names"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("before", [False, True])
def test_a_kill_leaves_the_old_index_or_the_new_one(
    run, photos, made, tmp_path, monkeypatch, before
):
    """Each child continues what the one before it left; FAISS and torch run in one thread."""
    monkeypatch.setattr(parts, "IN_A_PART", 150)
    place = tmp_path / "index"
    if before:
        old = zoo.index.build(run, photos / "03", place, device="cpu", reporter=QUIET)
        assert len(old) == 20
    model = zoo.load(run, "cpu")
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    seen = []

    def work():
        zoo.index.build(model, photos, place, kind="ivfpq", reporter=QUIET)

    for _ in killed_at_every_step(place, work):
        there = (place / "meta.json").exists()
        seen.append(len(zoo.index.open(place)) if there else 0)
        search_folder.check_place(place)
    assert {*seen} == {20 if before else 0, COUNT}
    assert seen == sorted(seen)
    assert files_in(place) == files_in(made.folder)
    assert part(place, "vectors").read_bytes() == part(made.folder, "vectors").read_bytes()


@pytest.mark.slow
def test_several_processes_build_the_same(run, photos, made, tmp_path):
    place = tmp_path / "i"
    again = zoo.index.build(
        run, photos, place, kind="ivfpq", device="cpu", processes=2, reporter=QUIET
    )
    assert again.names == made.names
    mine, theirs = (
        parts.vectors_in(part(folder, "vectors"), 8).astype(np.float64)
        for folder in (place, made.folder)
    )
    assert abs(mine - theirs).max() < 1e-3


# --- damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: part(f, "lists").unlink(),
        lambda f: os.truncate(part(f, "lists"), part(f, "lists").stat().st_size - 1),
        lambda f: os.truncate(part(f, "vectors"), 0),
        lambda f: part(f, "vectors").write_bytes(b"x" * part(f, "vectors").stat().st_size),
        lambda f: part(f, "lists").write_bytes(b"x" * part(f, "lists").stat().st_size),
        lambda f: (part(f, "lists").unlink(), os.mkfifo(part(f, "lists"))),
        lambda f: part(f, "index").write_bytes(b"x" * part(f, "index").stat().st_size),
        lambda f: meta_with(f, lambda meta: meta.update(lists=None)),
        lambda f: meta_with(f, lambda meta: meta.update(vectors=None)),
        lambda f: meta_with(f, lambda meta: meta.update(kind="ivf")),
        lambda f: meta_with(f, lambda meta: meta.update(embedding_size=4)),
        lambda f: meta_with(f, lambda meta: meta.update(lists=meta["vectors"])),
        lambda f: meta_with(f, lambda meta: meta.update(index=meta["lists"])),
    ],
)
def test_a_damaged_index(made, tmp_path, damage):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    damage(folder)
    with pytest.raises(zoo.UserError, match="build it again with zoo index"):
        zoo.index.open(folder)


def test_a_large_file_is_read_to_its_end_only_on_request(made, tmp_path, monkeypatch):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    data = bytearray(part(folder, "vectors").read_bytes())
    data[-1] ^= 1
    part(folder, "vectors").write_bytes(data)
    monkeypatch.setattr(search_folder, "_SOON_READ", len(data) - 1)
    assert len(zoo.index.open(folder)) == COUNT
    with pytest.raises(zoo.UserError, match="it is not the file that meta.json describes"):
        zoo.index.open(folder, verify=True)


@pytest.mark.skipif(sys.platform == "darwin", reason="bytes are text here")
def test_images_whose_names_are_no_text(run, photos, tmp_path, monkeypatch):
    odd = os.fsdecode(b"\xff")
    root = shutil.copytree(photos, tmp_path / odd)
    (root / "01" / "001.png").rename(root / f"{odd}.png")
    (root / f"{odd}{odd}.png").write_bytes(b"broken")
    build = partial(zoo.index.build, run, root, tmp_path / "i", kind="ivfpq", reporter=QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(compressing, "trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert parts.unfinished(tmp_path / "i").parts[0].unreadable.keys() == {
        "00/broken.png",
        f"{odd}{odd}.png",
    }
    made = build()
    assert f"{odd}.png" in made.names
    assert len(made) == COUNT


@pytest.mark.skipif(sys.platform == "darwin", reason="bytes are text here")
def test_a_path_that_is_no_text(made, photos, tmp_path):
    folder = shutil.copytree(made.folder, Path(tmp_path) / os.fsdecode(b"\xff"))
    query = photos / "05" / "005.png"
    again = zoo.index.open(folder, run=made.meta.run.path, device="cpu")
    assert again.search(query, 3) == made.search(query, 3)


def test_a_flat_index_has_no_refining(run, photos, tmp_path):
    flat = zoo.index.build(run, photos / "03", tmp_path / "i", device="cpu", reporter=QUIET)
    assert (flat.meta.refine, flat.meta.lists, flat.meta.vectors) == (0, None, None)
    assert isinstance(flat._neighbours, Neighbours)
