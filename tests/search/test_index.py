"""zoo index and zoo search: the nearest images, exactly as the evaluation counts them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import QUIET, run_on_photographs
from killed import killed_at_every_step
from PIL import Image
from places import SHARED
from replicas import save_photo

import zoo
from zoo.runs import identity
from zoo.runs.folder import RunFolder
from zoo.search import folder as search_folder
from zoo.search import neighbours as search_neighbours
from zoo.search import sheet as search_sheet
from zoo.search.neighbours import Neighbours, kind_for, unit
from zoo.search.sheet import Picture, _fitting, draw
from zoo.support import environment
from zoo.trained import network

pytest.importorskip("faiss")

CPU = torch.device("cpu")
BIRDS = SHARED / "data" / "birds"


@pytest.fixture(scope="module")
def here(finished_run):
    return finished_run.parents[1]


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


@pytest.fixture(scope="module")
def photos(here, run):
    """The test images of the run, three of them once more under other names."""
    root = shutil.copytree(here / "photos" / "test", here / "mine")
    for name in ("test0/0.png", "test0/1.png", "test2/3.png"):
        shutil.copy(root / name, root / name.replace(".png", "-copy.png"))
    return root


@pytest.fixture(scope="module")
def made(here, run, photos):
    """A flat index, in its folder."""
    return zoo.index.build(run, photos, here / "index", device="cpu", reporter=QUIET)


def ranks_from(lists, names, queries):
    """Return r(q) as :mod:`zoo.evaluate` defines it, of whole lists of neighbours."""
    ranks = []
    for hits, query in zip(lists, queries, strict=True):
        label = Path(query).parent.name
        best = next(hit.cosine for hit in hits if Path(hit.name).parent.name == label)
        others = [hit for hit in hits if Path(hit.name).parent.name != label]
        ranks.append(1 + sum(hit.cosine >= best - zoo.evaluation.items.TIE for hit in others))
    return ranks


def labels_of(names):
    classes = sorted({Path(name).parent.name for name in names})
    return np.array([classes.index(Path(name).parent.name) for name in names])


# --- exactness


def test_a_flat_index_finds_what_the_evaluation_counted(made, run, photos):
    queries = [photos / name for name in made.names]
    lists = made.search(queries, len(made), exclude_self=True)
    assert all(len(hits) == len(made) - 1 for hits in lists)
    assert not any(hit.itself for hits in lists for hit in hits)
    embeddings = zoo.load(run).embed_folder(photos, reporter=QUIET).embeddings
    wanted = zoo.evaluate.ranks(embeddings, labels_of(made.names))
    assert ranks_from(lists, made.names, made.names) == wanted.tolist()


@pytest.mark.slow
@pytest.mark.skipif(not BIRDS.is_dir(), reason="no photographs at hand")
def test_on_birds_the_command_finds_what_the_run_counted(tmp_path, command):
    changes = (f"dataset.root={BIRDS}", "train.iterations=0", "loss=null")
    run = run_on_photographs(tmp_path, *changes)
    status, out, error = command("index", run, BIRDS / "test", "-o", tmp_path / "i", "-q")
    assert (status, error) == (0, "")
    assert "2,474 images, flat" in out
    names = json.loads(part(tmp_path / "i", "names").read_text())
    paths = [BIRDS / "test" / name for name in names]
    options = ["-k", 60, "--exclude-self", "--json", "-q"]
    status, out, _ = command("search", tmp_path / "i", *paths, *options)
    assert status == 0
    found = json.loads(out)["queries"]
    assert [one["query"] for one in found] == list(map(str, paths))
    ranks = []
    for one in found:
        label = Path(one["query"]).parent.name
        same = [Path(hit["name"]).parent.name == label for hit in one["hits"]]
        ranks.append(same.index(True) + 1 if any(same) else 61)
    recorded = RunFolder(run).ranks()
    assert ranks == recorded.clip(max=61).tolist()
    for k, recall in RunFolder(run).result()["recall"].items():
        assert np.mean(np.array(ranks) <= int(k)) == recall


def exactly(vectors, queries, k):
    """Return positions by cosine in float64, ties by position: all of them compared."""
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True).clip(1e-300)
    mine = queries.astype(np.float64)
    mine /= np.linalg.norm(mine, axis=1, keepdims=True).clip(1e-300)
    cosines = np.einsum("qd,nd->qn", mine, exact).round(12)
    place = np.broadcast_to(np.arange(len(vectors)), cosines.shape)
    return np.lexsort((place, -cosines))[:, :k]


@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e-7, 0.0])
@pytest.mark.parametrize("k", [1, 10, 400])
def test_the_order_is_that_of_float64(noise, k):
    """With noise of 1e-7, float32 cannot tell most neighbours apart; with none they are equal."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2, 24))
    vectors = unit(
        (centres[rng.integers(0, 2, 400)] + noise * rng.normal(size=(400, 24))).astype(np.float32)
    )
    found = Neighbours.of(vectors, "flat", CPU).search(vectors[:40], k)
    assert (found.positions == exactly(vectors, vectors[:40], k)).all()
    assert (np.diff(found.cosines, axis=1) <= 0).all()


def test_copies_come_by_name_and_a_zero_vector_is_near_to_nothing():
    vectors = np.ones((50, 4), np.float32) / 2
    vectors[7] = 0
    found = Neighbours.of(vectors, "flat", CPU).search(vectors[[0, 7]], 50)
    assert found.positions[0].tolist() == [*range(7), *range(8, 50), 7]
    assert found.cosines[0].tolist() == [1.0] * 49 + [0.0]
    assert found.positions[1].tolist() == list(range(50))
    assert not found.cosines[1].any()


def test_the_length_of_a_query_changes_nothing():
    vectors = unit(np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32))
    index = Neighbours.of(vectors, "flat", CPU)
    near, far = (index.search(scale * vectors[:9], 5) for scale in (1.0, 2.0**-9))
    assert (near.positions == far.positions).all()
    assert (near.cosines == far.cosines).all()


def test_blocks_change_nothing(monkeypatch):
    vectors = unit(np.random.default_rng(2).normal(size=(90, 6)).astype(np.float32))
    index = Neighbours.of(vectors, "flat", CPU)
    whole = index.search(vectors, 7)
    monkeypatch.setattr(search_neighbours, "_BLOCK_BYTES", 1)
    parts = index.search(vectors, 7)
    assert all((a == b).all() for a, b in zip(whole, parts, strict=True))
    assert index.search(vectors[:0], 7).positions.shape == (0, 7)


# --- approximate kinds


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_index_tells_what_it_finds(kind, tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(100, 16))
    vectors = unit((centres[rng.integers(0, 100, 3000)] + rng.normal(size=(3000, 16))).astype("f4"))
    index = Neighbours.of(vectors, kind, CPU)
    trials = index.tune(vectors)
    assert trials[-1].recall >= search_neighbours.TARGET_RECALL
    assert all(trial.recall < search_neighbours.TARGET_RECALL for trial in trials[:-1])
    assert index.value == trials[-1].value
    found = index.search(vectors[:200], 11).positions
    wanted = exactly(vectors, vectors[:200], 11)
    share = np.mean([len({*a} & {*b}) / 11 for a, b in zip(found, wanted, strict=True)])
    assert share > 0.9
    with (tmp_path / "x").open("wb") as file:
        index.write(file)
    again = Neighbours.read(tmp_path / "x", kind, CPU)
    again.value = index.value
    assert (again.search(vectors[:200], 11).positions == found).all()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_more_neighbours_are_found_as_well_as_ten(kind):
    """With the effort that does for ten, ivf gave 71 of 150, and hnsw two thirds of a hundred."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, 12))
    vectors = unit((centres[rng.integers(0, 60, 3000)] + rng.normal(size=(3000, 12))).astype("f4"))
    index = Neighbours.of(vectors, kind, CPU)
    index.tune(vectors)
    value = index.value
    for k in (10, 100, 500):
        found = index.search(vectors[:50], k).positions
        assert (found >= 0).all()
        wanted = exactly(vectors, vectors[:50], k)
        share = np.mean([len({*a} & {*b}) / k for a, b in zip(found, wanted, strict=True)])
        assert share > 0.9
    assert index.value == value


def test_neighbours_that_cannot_be_reached_are_none():
    """Copies of one vector are a part of the graph that no link leads out of."""
    rng = np.random.default_rng(0)
    vectors = unit(np.repeat(rng.normal(size=(3, 8)), 400, 0).astype(np.float32))
    index = Neighbours.of(vectors, "hnsw", CPU)
    found = index.search(vectors[[0, 500]], 1200)
    assert found.positions.shape == (2, 1200)
    for row in found.positions:
        there = row[row >= 0]
        assert len({*there}) == len(there)
        assert (row[len(there) :] == -1).all()


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_few_vectors(kind, count):
    vectors = unit(np.random.default_rng(3).normal(size=(count, 4)).astype(np.float32))
    index = Neighbours.of(vectors, kind, CPU)
    index.tune(vectors)
    assert index.search(vectors, 99).positions[:, 0].tolist() == list(range(count))


def test_the_kind_goes_by_the_number_of_images(monkeypatch):
    monkeypatch.setattr(environment, "memory", lambda: 1 << 34)
    counts = (1, 100_000, 100_001, 1_000_000, 1_000_001, 25_165_824, 25_165_825)
    kinds = ["flat", "flat", "hnsw", "hnsw", "ivf", "ivf", "ivfpq"]
    assert [kind_for(n, 64) for n in counts] == kinds
    monkeypatch.setattr(environment, "memory", lambda: None)
    assert kind_for(10**9, 64) == "ivf"


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_the_command_prints_the_recall(run, photos, tmp_path, command, kind):
    status, out, _ = command("index", run, photos, "-o", tmp_path / "i", "--kind", kind)
    assert status == 0
    first, *trials = out.splitlines()
    assert first == f"{tmp_path / 'i'}: 15 images, {kind}, d 8"
    name = {"hnsw": "efSearch", "ivf": "nprobe"}[kind]
    assert all(line.startswith(name) and "  recall@10 " in line for line in trials)
    assert trials[-1].endswith("  chosen")
    status, out, _ = command("search", tmp_path / "i", photos / "test1" / "2.png", "-k", 3)
    assert status == 0
    assert "1  1.0000  test1/2.png (itself)" in out


def test_what_could_not_be_reached_is_said(run, photos, tmp_path, command, monkeypatch):
    monkeypatch.setattr(Neighbours, "tune", lambda *_: [search_neighbours.Trial(16, 0.5)])
    status, out, _ = command("index", run, photos, "-o", tmp_path / "i", "--kind", "hnsw")
    assert status == 0
    assert out.endswith("less than the target of 95 %; --kind flat finds all\n")


# --- the command


def test_an_image_of_the_index_finds_itself_and_its_copy(made, photos, command):
    query = photos / "test0" / "1.png"
    status, out, _ = command("search", made.folder, query, "-k", 3)
    assert status == 0
    title, _, *rows = out.splitlines()
    assert title == str(query)
    assert rows[0].split() == ["1", "1.0000", "test0/1-copy.png"]
    assert rows[1].split() == ["2", "1.0000", "test0/1.png", "(itself)"]
    status, out, _ = command("search", made.folder, query, "-k", 3, "--exclude-self")
    assert "itself" not in out
    assert len(out.splitlines()) == len(rows) + 2


def test_fewer_neighbours_than_were_asked_for_are_told(made, photos, command, monkeypatch):
    query = photos / "test0" / "1.png"
    for more in ([], ["--exclude-self"]):
        status, _, error = command("search", made.folder, query, "-k", 99, *more)
        assert (status, error) == (0, f"{made.folder}: has 15 images, not 99\n")
    for k, more in ((15, []), (14, ["--exclude-self"])):
        assert command("search", made.folder, query, "-k", k, *more)[2] == ""
    whole = Neighbours.search

    def lacks(self, queries, k):
        found = whole(self, queries, k)
        found.positions[:, 4:] = -1
        return found

    monkeypatch.setattr(Neighbours, "search", lacks)
    status, out, error = command("search", made.folder, query, "-k", 12)
    assert (status, error) == (0, f"{query}: 4 of 12 found; an index of --kind flat finds all\n")
    assert len(out.splitlines()) == 3 + 4


def test_json_is_for_machines(made, photos, tmp_path, command):
    (tmp_path / "broken.jpg").write_bytes(b"broken")
    query = photos / "test1" / "0.png"
    given = [query, tmp_path / "broken.jpg", query]
    status, out, error = command("search", made.folder, *given, "-k", 2, "--json")
    assert status == 0
    assert "1 unreadable file left out" in error
    found = json.loads(out)
    assert found["kind"] == "flat"
    assert found["unreadable"] == {str(tmp_path / "broken.jpg"): "not an image that Pillow reads"}
    first, second = found["queries"]
    assert first == second
    assert first["query"] == str(query)
    assert first["hits"][0] == {
        "rank": 1,
        "name": "test1/0.png",
        "path": str(query),
        "cosine": 1.0,
        "itself": True,
    }
    assert len(first["hits"]) == 2


@pytest.mark.parametrize("name", ["sheet.png", "sheet.JPG", "sheet.pdf"])
def test_a_contact_sheet(made, photos, tmp_path, command, name):
    queries = [photos / "test0" / "0.png", photos / "test1" / "0.png"]
    status, _, error = command("search", made.folder, *queries, "--sheet", tmp_path / name)
    assert status == 0
    assert f"{name}: contact sheet" in error
    if name != "sheet.pdf":
        with Image.open(tmp_path / name) as sheet:
            assert sheet.width > 1000
            pixels = np.asarray(sheet.convert("L"))
        assert pixels.std() > 10


def test_a_sheet_goes_without_images_that_are_gone(made, run, photos, tmp_path, command):
    mine = shutil.copytree(photos, tmp_path / "photos")
    zoo.index.build(run, mine, tmp_path / "index", device="cpu", reporter=QUIET)
    (mine / "test0" / "0.png").unlink()
    query = mine / "test0" / "1.png"
    status, _, _ = command("search", tmp_path / "index", query, "-o", tmp_path / "s.png", "-k", 15)
    assert status == 0
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.height > 300  # two lines of hits


LONG = "x" * 100_000


def test_names_of_any_length_on_a_sheet(made, tmp_path):
    rows = [(Picture(tmp_path / "x", LONG, f"{LONG}/{LONG}"), [])]
    draw(tmp_path / "sheet.png", rows, 10**6)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height < 400


@pytest.mark.parametrize(
    ("text", "shown"),
    [("short.png", "short.png"), ("", ""), ("a" * 99 + "z" * 99, "a…z"), (f"a{LONG}z", "a…z")],
)
def test_a_name_is_cut_in_its_middle(text, shown):
    found = _fitting(text, 132, 11)
    assert found == shown or (found[0] + "…" + found[-1] == shown and found.count("…") == 1)
    assert search_sheet._font(11).getlength(found) <= 132
    assert len(text) < 10 or search_sheet._font(11).getlength(found) > 110


def test_paths_that_are_too_long(made, run, photos, tmp_path, command):
    query = photos / "test0" / "0.png"
    for arguments in (
        ["search", made.folder, f"{LONG}.png"],
        ["search", LONG, query],
        ["search", made.folder, query, "--run", LONG],
        ["search", made.folder, query, "--sheet", f"{LONG}.png"],
        ["index", run, photos, "-o", tmp_path / LONG],
        ["index", run, LONG, "-o", tmp_path / "i"],
        ["embed", run, photos, "-o", f"{LONG}.npz"],
        ["embed", run, LONG, "-o", tmp_path / "e.npz"],
        ["export", run, "-o", f"{LONG}.pt2"],
    ):
        status, out, error = command(*arguments)
        assert status in (1, 2), arguments
        assert (out, error.count("\n"), error[:7]) == ("", 1, "error: ")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.png"], "none.png: does not exist; give image files"),
        (["photos"], "photos: is a folder; give image files"),
        (["broken.jpg"], "queries: none of its images can be read:\n  broken.jpg: "),
        (["q.png", "-o", "sheet.txt"], "sheet.txt: give an image file, such as sheet.png"),
        (["q.png", "-o", "none/sheet.png"], "there is no folder"),
        (["q.png", "--run", "none"], "none: not a run folder"),
    ],
)
def test_what_cannot_be_searched_with(made, tmp_path, command, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    save_photo(Path("q.png"), 1)
    Path("photos").mkdir()
    Path("broken.jpg").write_bytes(b"broken")
    status, out, error = command("search", made.folder, *arguments, "--device", "cpu")
    assert (status, out) == (2, "")
    assert said in error
    assert error.startswith("error: ")


def test_names_cannot_steer_a_terminal(run, tmp_path, command):
    name = "\x1b[31m[bold]red\n.png"
    save_photo(tmp_path / "photos" / name, 1)
    status, *_ = command("index", run, tmp_path / "photos", "-o", tmp_path / "i")
    assert status == 0
    query = tmp_path / "photos" / name
    status, out, _ = command("search", tmp_path / "i", query, "-o", tmp_path / "s.png")
    assert status == 0
    assert "\x1b" not in out
    assert "\\x1b[31m[bold]red\\n.png (itself)" in out


# --- in Python


def test_images_in_any_form(made, photos):
    path = photos / "test1" / "2.png"
    with Image.open(path) as image:
        forms = [path, str(path), image.convert("RGB"), np.asarray(image.convert("RGB"))]
    alone = [made.search(form, 2)[0] for form in forms]
    together = made.search(forms, 2)
    for hits in (*alone, *together):
        assert [hit.name for hit in hits] == [hit.name for hit in alone[0]]
        assert hits[0].path == path
    assert [hits[0].itself for hits in alone] == [True, True, False, False]
    assert made.search(path, 1, exclude_self=True)[0][0].name == alone[0][1].name


def test_an_index_is_opened_again(made, photos):
    again = zoo.index.open(made.folder, device="cpu")
    query = photos / "test2" / "3.png"
    assert again.search(query, 4) == made.search(query, 4)
    assert len(again) == 15
    assert again.kind == "flat"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 0}, "k is 0"),
        ({"embeddings": np.zeros((1, 7), np.float32)}, r"the index takes \(n, 8\)"),
        ({"embeddings": np.full((1, 8), np.nan)}, "NaN or infinite"),
    ],
)
def test_what_cannot_be_asked(made, change, said):
    with pytest.raises(zoo.UserError, match=said):
        made.search_embeddings(**{"embeddings": np.ones((1, 8)), **change})


# --- the folder


def test_another_network_is_refused(here, made, tmp_path):
    other = run_on_photographs(here, "seed=1")
    with pytest.raises(zoo.UserError, match="was made with another network than .* has now"):
        zoo.index.open(made.folder, run=other)


def test_a_run_that_was_moved(run, photos, tmp_path):
    inside = tmp_path / "old"
    shutil.copytree(run, inside / "run")
    zoo.index.build(inside / "run", photos, inside / "index", device="cpu", reporter=QUIET)
    inside.rename(tmp_path / "new")
    query = photos / "test0" / "0.png"
    moved = tmp_path / "new"
    assert zoo.index.open(moved / "index").search(query, 1)[0][0].name == "test0/0-copy.png"
    (moved / "run").rename(tmp_path / "run")
    with pytest.raises(zoo.UserError, match="is missing; say where it is with --run"):
        zoo.index.open(moved / "index").search(query)
    found = zoo.index.open(moved / "index", run=tmp_path / "run")
    assert found.search(query, 1)[0][0].name == "test0/0-copy.png"


def part(folder, which):
    """Return the path of one of the files: index, names or meta."""
    if which == "meta":
        return folder / "meta.json"
    return folder / json.loads((folder / "meta.json").read_text())[which]["name"]


def meta_with(folder, change):
    """Change meta.json and seal it again, as somebody may who knows how."""
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(identity.seal(meta)))


def names_become(folder, content):
    """Change the names, with a digest that fits."""
    data = json.dumps(content).encode()
    part(folder, "names").write_bytes(data)
    known = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    meta_with(folder, lambda meta: meta["names"].update(known))


def rename_first(folder, name):
    names = json.loads(part(folder, "names").read_text())
    names_become(folder, [name, *names[1:]])


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: part(f, "meta").write_text("["),
        lambda f: part(f, "meta").write_text("[" * 100_000),
        lambda f: part(f, "meta").write_text("3"),
        lambda f: part(f, "meta").write_bytes(b"\xff"),
        lambda f: part(f, "meta").write_bytes(b" " * (2 << 20)),
        lambda f: meta_with(f, lambda meta: meta.pop("network")),
        lambda f: meta_with(f, lambda meta: meta.pop("index")),
        lambda f: meta_with(f, lambda meta: meta["names"].update(name="../names.json")),
        lambda f: meta_with(f, lambda meta: meta.update(embedding_size=9)),
        lambda f: meta_with(f, lambda meta: meta.update(kind="hnsw")),
        lambda f: part(f, "names").unlink(),
        lambda f: (part(f, "names").unlink(), os.mkfifo(part(f, "names"))),
        lambda f: (part(f, "names").unlink(), part(f, "names").symlink_to("/dev/zero")),
        lambda f: part(f, "names").write_text("[]"),
        lambda f: names_become(f, []),
        lambda f: names_become(f, 3),
        lambda f: rename_first(f, "../../etc/x.png"),
        lambda f: rename_first(f, "/etc/x.png"),
        lambda f: rename_first(f, "a\0b"),
        lambda f: rename_first(f, 3),
        lambda f: part(f, "index").unlink(),
        lambda f: (part(f, "index").unlink(), os.mkfifo(part(f, "index"))),
        lambda f: part(f, "index").write_bytes(part(f, "index").read_bytes()[:-4]),
        lambda f: part(f, "index").write_bytes(b"x" * part(f, "index").stat().st_size),
    ],
)
def test_a_damaged_index(made, tmp_path, damage):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    damage(folder)
    with pytest.raises(zoo.UserError, match="build it again with zoo index"):
        zoo.index.open(folder)


@pytest.fixture
def no_faiss(monkeypatch):
    """Let FAISS read nothing: of a damaged header it would ask for any memory."""
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS read it"))


@pytest.mark.parametrize("which", ["index", "names", "meta"])
def test_no_flipped_bit_is_accepted(made, tmp_path, no_faiss, which):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    path = part(folder, which)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    places = {*range(64), *rng.integers(0, 8 * len(whole), 150).tolist()}
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(zoo.UserError, match="build it again with zoo index"):
            zoo.index.open(folder)


def test_a_vector_over_another_is_noticed(made, tmp_path, no_faiss):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    path = part(folder, "index")
    data = path.read_bytes()
    row = 4 * made.meta.embedding_size
    path.write_bytes(data[:-row] + data[-15 * row :][:row])
    with pytest.raises(zoo.UserError, match="it is not the file that meta.json describes"):
        zoo.index.open(folder)


@pytest.mark.parametrize("which", ["index", "names"])
def test_a_file_of_another_index_is_noticed(made, run, photos, tmp_path, which):
    """Of as many images, so that nothing but the content differs."""
    mine = shutil.copytree(photos, tmp_path / "mine")
    (mine / "test0" / "0.png").rename(mine / "test0" / "00.png")
    save_photo(mine / "test0" / "1.png", 77, size=(40, 36))
    zoo.index.build(run, mine, tmp_path / "index", device="cpu", reporter=QUIET)
    shutil.copy(part(made.folder, which), part(tmp_path / "index", which))
    with pytest.raises(zoo.UserError, match="it is not the file that meta.json describes"):
        zoo.index.open(tmp_path / "index")


def as_it_was_once(made, folder):
    """Write an index as it was before there were digests."""
    shutil.copytree(made.folder, folder)
    part(folder, "index").rename(folder / "index.faiss")
    part(folder, "names").rename(folder / "names.json")
    meta = json.loads((folder / "meta.json").read_text())
    for key in ("index", "names", "seal"):
        del meta[key]
    size = (folder / "index.faiss").stat().st_size
    (folder / "meta.json").write_text(json.dumps(meta | {"bytes": size}))


def test_an_index_without_digests_opens_with_a_warning(made, run, photos, tmp_path):
    as_it_was_once(made, tmp_path / "index")
    query = photos / "test2" / "3.png"
    with pytest.warns(UserWarning, match="has no digests, .* build it again with zoo index"):
        again = zoo.index.open(tmp_path / "index", device="cpu")
    assert again.search(query, 4) == made.search(query, 4)
    zoo.index.build(run, photos, tmp_path / "index", device="cpu", reporter=QUIET)
    assert len(files_in(tmp_path / "index")) == 3
    assert zoo.index.open(tmp_path / "index").search(query, 4) == made.search(query, 4)


def test_an_index_that_is_replaced_while_it_is_opened(made, run, photos, tmp_path, monkeypatch):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    few = shutil.copytree(photos / "test0", tmp_path / "few")
    whole = search_folder.read_names

    def replaced_meanwhile(*arguments):
        monkeypatch.undo()
        zoo.index.build(run, few, folder, reporter=QUIET)
        return whole(*arguments)

    monkeypatch.setattr(search_folder, "read_names", replaced_meanwhile)
    assert len(zoo.index.open(folder)) == 6


def test_no_index(made, tmp_path):
    with pytest.raises(zoo.UserError, match="has no index; zoo index makes one"):
        zoo.index.open(tmp_path)
    with pytest.raises(zoo.UserError, match="is a file; give the folder"):
        zoo.index.open(made.folder / "meta.json")


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="bytes are text here")
def test_paths_that_are_no_text(run, photos, tmp_path, command):
    odd = os.fsdecode(b"\xff")
    mine = shutil.copytree(photos / "test0", tmp_path / f"mine{odd}")
    (mine / "0.png").rename(mine / f"0{odd}.png")
    place = tmp_path / f"index{odd}"
    status, out, _ = command("index", run, mine, "-o", place)
    assert (status, out) == (0, f"{tmp_path}/index\\udcff: 6 images, flat, d 8\n")
    status, out, _ = command("search", place, mine / f"0{odd}.png", "-k", 2)
    assert status == 0
    assert "0\\udcff.png (itself)" in out
    status, out, _ = command("search", place, mine / f"0{odd}.png", "-k", 6, "--json")
    hits = json.loads(out)["queries"][0]["hits"]
    assert [hit["name"] for hit in hits if hit["itself"]] == [f"0{odd}.png"]


def test_where_an_index_cannot_go_is_said_before_the_work(
    run, photos, tmp_path, command, monkeypatch
):
    monkeypatch.setattr(network, "load", lambda *_: pytest.fail("work was begun"))
    monkeypatch.setattr("zoo.search.index.load", lambda *_: pytest.fail("work was begun"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    (tmp_path / "full").mkdir()
    wrong = {"thesis": "other files than an index, such as thesis.tex", "file": "is a file; name"}
    wrong |= {"file/index": "cannot be written", "link": "has other files"}
    for name, said in wrong.items():
        status, _, error = command("index", run, photos, "-o", tmp_path / name)
        assert (status, error.count("\n")) == (2, 1)
        assert said in error
    status, _, error = command("index", run, photos, "-o", tmp_path / "i", "--kind", "hsnw")
    assert status == 2
    assert "kind 'hsnw': give auto, flat, hnsw, ivf or ivfpq; did you mean hnsw?" in error


def files_in(folder):
    """Return names and contents of what is in a folder, without the lock."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".meta.json.lock"}


@pytest.mark.parametrize("fails", ["write", "names", "meta"])
def test_an_index_is_replaced_whole_or_not_at_all(made, run, photos, tmp_path, monkeypatch, fails):
    folder = shutil.copytree(made.folder, tmp_path / "index")
    before = files_in(folder)
    few = shutil.copytree(photos / "test0", tmp_path / "few")
    whole = search_folder.replace_file

    def full(path, write):
        if fails in path.name:
            raise OSError(28, "No space left on device")
        whole(path, write)

    with monkeypatch.context() as patch:
        if fails == "write":
            patch.setattr(Neighbours, "write", lambda *_: full(Path("write"), None))
        else:
            patch.setattr(search_folder, "replace_file", full)
        with pytest.raises(zoo.UserError, match="no room left on the disk"):
            zoo.index.build(run, few, folder, reporter=QUIET)
    assert files_in(folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"few", "index"}
    left = ["index-0123456789abcdef.faiss", "names-0123456789abcdef.json"]
    for name in (*left, f".{left[0]}.{'0' * 32}.tmp", f".meta.json.{'f' * 32}.tmp"):
        (folder / name).write_text("left by a build that was killed")
    zoo.index.build(run, few, folder, reporter=QUIET)
    assert len(zoo.index.open(folder)) == 6
    assert len(files_in(folder)) == 3
    assert not {*files_in(folder)} & {*left}
    assert {path.name for path in tmp_path.iterdir()} == {"few", "index"}


def test_an_index_that_cannot_be_written_leaves_no_folder(run, photos, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Neighbours, "write", full)
    with pytest.raises(zoo.UserError, match="no room left on the disk"):
        zoo.index.build(run, photos / "test0", tmp_path / "index", reporter=QUIET)
    assert names_in(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has no digests")
@pytest.mark.parametrize("before", ["nothing", "an index", "an old index"])
def test_a_kill_leaves_the_old_index_or_the_new_one(made, tmp_path, before):
    place = tmp_path / "index"
    if before == "an index":
        shutil.copytree(made.folder, place)
    elif before == "an old index":
        as_it_was_once(made, place)
    names = [f"{number}.png" for number in range(3)]
    neighbours = Neighbours.of(unit(np.eye(3, 8, dtype=np.float32)), "flat", CPU)
    about = search_folder.About(**made.meta.model_dump() | {"count": 3})
    seen = []

    def write():
        search_folder.write(place, names, neighbours, about, QUIET)

    for _ in killed_at_every_step(tmp_path, write):
        seen.append(images_in(place))
        search_folder.check_place(place)
    assert seen == sorted(seen, reverse=before != "nothing")
    assert {*seen} == {0 if before == "nothing" else 15, 3}
    assert len(zoo.index.open(place)) == 3
    assert len(files_in(place)) == 3
    assert names_in(tmp_path) == ["index"]


def images_in(place):
    """Return how many images an index has; 0 where there is none."""
    if not (place / "meta.json").exists():
        with pytest.raises(zoo.UserError, match="has no index; zoo index makes one"):
            zoo.index.open(place)
        return 0
    return len(zoo.index.open(place))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_without_faiss_it_is_said_what_to_install(run, photos, tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    status, _, error = command("index", run, photos, "-o", tmp_path / "i")
    assert status == 2
    assert (
        "an index needs FAISS, which is not installed: pip install 'metric-zoo[faiss-cpu]'" in error
    )


def test_a_network_that_is_broken(run, photos, tmp_path):
    model = zoo.load(run)
    model.embedder.heads[0].weight.data.fill_(float("nan"))
    with pytest.raises(zoo.UserError, match="its network gives NaN or infinite embeddings"):
        zoo.index.build(model, photos, tmp_path / "i", reporter=QUIET)


def test_the_folder_holds_what_is_documented(made):
    assert files_in(made.folder).keys() == {
        "meta.json",
        made.meta.index.name,
        made.meta.names.name,
    }


def test_an_index_knows_its_images_by_any_kind_of_path(made, photos):
    path = photos / made.names[0]
    assert path in made
    assert str(path) in made
    assert str(photos / "none.png") not in made
    assert 3 not in made
