"""zoo evaluate: embeddings of other programs, in every form and in wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import zoo
from zoo.measures import measure

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)) + 2 * np.eye(5)[np.arange(60) % 5]
Y = np.arange(60) % 5
NAMES = np.array(["heron", "wren", "été", "crow", "kite"])[Y]


def measured(command, *arguments):
    status, out, err = command("evaluate", *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=X, labels=Y)
    return tmp_path / "a.npz"


def test_it_is_what_python_measures(command, npz):
    found = measured(command, npz, "--ks", "4,1", "--measures", "map_at_r,ami")
    recall = zoo.evaluate.recall_at_k(X, Y, [1, 4])
    assert found["recall"] == {str(k): value for k, value in recall.items()}
    assert found["measures"] == pytest.approx(measure(["map_at_r", "ami"], X, Y).values)
    assert (found["queries"], found["gallery"], found["dimensions"]) == (60, None, 5)
    assert 0.3 < found["recall"]["1"] < 1


def test_the_table_says_what_was_measured(command, npz):
    status, out, _ = command("evaluate", npz)
    assert status == 0
    assert out.startswith("In percent; 60 queries; 5-d\n")
    assert all(head in out for head in ("R@1", "R@8", "MAP@R", "R-precision"))
    assert f"{100 * zoo.evaluate.recall_at_k(X, Y, [1])[1]:.2f}" in out


def test_text_and_numbers_as_labels_are_the_same(command, npz, tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    np.save(tmp_path / "names.npy", NAMES)
    np.savez(tmp_path / "names.npz", embeddings=X, labels=NAMES)
    expected = measured(command, npz)
    assert measured(command, tmp_path / "names.npz") == expected
    for labels in ("names.txt", "names.npy"):
        given = measured(command, tmp_path / "x.npy", "--labels", tmp_path / labels)
        assert given["recall"] == expected["recall"]


def test_queries_and_gallery_in_one_file_or_in_two(command, tmp_path):
    asked = np.arange(60) < 20
    np.savez(tmp_path / "both.npz", embeddings=X, labels=Y, is_query=asked, is_gallery=~asked)
    np.savez(tmp_path / "q.npz", embeddings=X[asked], labels=NAMES[asked])
    np.savez(tmp_path / "g.npz", embeddings=X[~asked], labels=NAMES[~asked])
    one = measured(command, tmp_path / "both.npz")
    assert one == measured(command, tmp_path / "q.npz", "--gallery", tmp_path / "g.npz")
    expected = zoo.evaluate.recall_at_k(
        X[asked], Y[asked], [1, 2, 4, 8], gallery=X[~asked], gallery_labels=Y[~asked]
    )
    assert one["recall"] == {str(k): value for k, value in expected.items()}
    assert (one["queries"], one["gallery"], one["measures"]) == (20, 40, {})
    status, out, _ = command("evaluate", tmp_path / "both.npz")
    assert (status, out.startswith("In percent; 20 queries in a gallery of 40; 5-d")) == (0, True)


def test_queries_without_a_match_are_counted(command, tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=X[:6], labels=Y[:6])
    _, out, _ = command("evaluate", tmp_path / "a.npz", "--measures", "none")
    assert "6 queries, 4 without another of their class" in out


def test_parquet(command, npz, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"embedding": X.tolist(), "label": NAMES.tolist(), "other": Y})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert measured(command, tmp_path / "a.parquet") == measured(command, npz)
    parquet.write_table(pyarrow.table({"label": Y}), tmp_path / "b.parquet")
    _, _, err = command("evaluate", tmp_path / "b.parquet")
    assert "has no column named embedding" in err
    lists = [[1.0], [1.0, 2.0]]
    table = pyarrow.table({"embedding": lists, "label": [0, 0]})
    parquet.write_table(table, tmp_path / "c.parquet")
    _, _, err = command("evaluate", tmp_path / "c.parquet")
    assert "its embeddings must be lists of numbers, all of one length" in err


def test_without_pyarrow(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    status, _, err = command("evaluate", tmp_path / "a.parquet")
    assert (status, "pip install pyarrow" in err) == (2, True)


WRONG = {
    "no labels": ({"embeddings": X}, "has no labels; name a file that has them: --labels"),
    "no embeddings": ({"labels": Y}, "has no array named embeddings"),
    "too few labels": ({"embeddings": X, "labels": Y[1:]}, "60 embeddings and 59 labels"),
    "one vector": ({"embeddings": X[0], "labels": Y}, "embeddings are float64 of shape (5,)"),
    "nothing": ({"embeddings": X[:0], "labels": Y[:0]}, "of shape (0, 5); they must be numbers"),
    "text": ({"embeddings": NAMES[:, None], "labels": Y}, "they must be numbers (n, d)"),
    "floats as labels": ({"embeddings": X, "labels": X[:, 0]}, "must be whole numbers or text"),
    "not finite": ({"embeddings": X * np.nan, "labels": Y}, "NaN"),
    "numbers as sides": (
        {"embeddings": X, "labels": Y, "is_query": Y},
        "is_query must be true or false for each item",
    ),
    "no query": (
        {"embeddings": X, "labels": Y, "is_query": Y > 9},
        "is_query is false for every item",
    ),
    "both at once": (
        {"embeddings": X, "labels": Y, "is_query": Y > 0},
        "48 items would be query and gallery at once",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content(case, command, tmp_path):
    arrays, said = WRONG[case]
    np.savez(tmp_path / "a.npz", **arrays)
    status, out, err = command("evaluate", tmp_path / "a.npz")
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_wrong_files(command, npz, tmp_path):
    np.savez_compressed(tmp_path / "small.npz", embeddings=X, labels=Y)
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 not a zip file")
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "folder.npz").mkdir()
    objects = np.array([object()])
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    for arguments, said in (
        (["small.npz"], "is compressed; save it with np.savez"),
        (["bad.npz"], "cannot be read"),
        (["bad.npy", "--labels", "a.csv"], "cannot be read"),
        (["objects.npy", "--labels", "a.csv"], "cannot be read"),
        (["absent.npz"], "cannot be read: No such file or directory"),
        (["folder.npz"], "cannot be read"),
        (["a.csv"], "must end in .npz, .npy or .parquet"),
        (["a.npz", "--labels", "absent.txt"], "cannot be read: No such file"),
        (["a.npz", "--gallery-labels", "a.csv"], "there is no --gallery"),
        (["a.npz", "--ks", "0,1"], "--ks: must be whole numbers from 1"),
        (["a.npz", "--ks", "x"], "--ks: must be whole numbers from 1"),
        (["a.npz", "--measures", "map"], "there is no measure 'map'; did you mean map_at_r"),
    ):
        paths = [tmp_path / a if "." in a else a for a in arguments]
        status, _, err = command("evaluate", *paths)
        assert status == 2, arguments
        assert said in err, (arguments, err)
        assert err.count("\n") == 1


def test_measures_are_not_left_out_in_silence(command, npz):
    status, _, err = command("evaluate", npz, "--gallery", npz, "--measures", "map_at_r")
    assert (status, "map_at_r cannot be measured with a gallery; leave it out" in err) == (2, True)


def test_sides_that_do_not_fit(command, npz, tmp_path):
    np.savez(tmp_path / "names.npz", embeddings=X, labels=NAMES)
    np.savez(tmp_path / "flat.npz", embeddings=X[:, :3], labels=Y)
    np.savez(tmp_path / "sided.npz", embeddings=X, labels=Y, is_gallery=Y > 2)
    for gallery, said in (
        ("names.npz", "labels of queries and gallery must both be text, or both be numbers"),
        ("flat.npz", "3"),
    ):
        status, _, err = command("evaluate", npz, "--gallery", tmp_path / gallery)
        assert (status, said in err) == (2, True), err
    status, _, err = command("evaluate", tmp_path / "sided.npz", "--gallery", npz)
    assert (status, "the gallery is given twice" in err) == (2, True)


def test_the_help_imports_no_torch():
    code = (
        "import sys; sys.argv = ['zoo', 'evaluate', '--help']\n"
        "from zoo.cli import main\n"
        "try: main.main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
