"""MAP@R and R-precision against brute force and PML; NMI and AMI; configs and runs with them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn import metrics
from small_run import small_run

import zoo
from zoo import UserError
from zoo.config import dump, load
from zoo.evaluation import measures
from zoo.evaluation.at_r import at_r
from zoo.evaluation.clusters import clusters
from zoo.evaluation.measures import map_at_r, r_precision
from zoo.evaluation.names import MEASURES
from zoo.measures import measure
from zoo.runs import identity
from zoo.runs.folder import RunFolder

TIE = 1e-12


def brute_force(queries, labels, gallery=None, gallery_labels=None):
    """Return average precision and precision at R of each query, one item after the other."""
    own = gallery is None
    gallery, gallery_labels = (queries, labels) if own else (gallery, gallery_labels)
    sides = []
    for side in (queries, gallery):
        lengths = np.linalg.norm(side.astype(np.float64), axis=1, keepdims=True)
        sides.append(side / np.where(lengths == 0, 1, lengths))
    found = []
    for q, query in enumerate(sides[0]):
        others = [i for i in range(len(gallery)) if not (own and i == q)]
        cosine = {i: float(query @ sides[1][i]) for i in others}
        right = sorted((cosine[i] for i in others if gallery_labels[i] == labels[q]), reverse=True)
        wrong = [cosine[i] for i in others if gallery_labels[i] != labels[q]]
        r, precision, hits = len(right), 0.0, 0
        for number, value in enumerate(right, start=1):
            place = number + sum(other >= value - TIE for other in wrong)
            if place <= r:
                precision, hits = precision + number / place, hits + 1
        found.append((precision / r, hits / r) if r else (0.0, 0.0))
    return np.array(found).T


def items(seed, n=60, classes=9, dim=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-3, classes - 3, n) ** 3  # of unequal sizes, some of one item
    centres = rng.standard_normal((9000, dim))
    return (centres[labels] + rng.standard_normal((n, dim))).astype(np.float32), labels


def check(found, wanted):
    assert np.allclose(found.average_precision, wanted[0], atol=1e-12, rtol=0)
    assert np.allclose(found.precision, wanted[1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block", [None, 1, 7])
def test_against_brute_force(seed, block):
    vectors, labels = items(seed, n=[60, 61, 20, 90, 3, 40][seed])
    check(at_r(vectors, labels, block=block), brute_force(vectors, labels))


@pytest.mark.parametrize("seed", range(3))
def test_with_ties_against_brute_force(seed):
    """Few values a number, copies of items, zero vectors: what is as near counts against it."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (50, 3)).astype(np.float64)
    labels = rng.integers(0, 5, 50)
    check(at_r(vectors, labels), brute_force(vectors, labels))


@pytest.mark.parametrize("seed", range(3))
def test_with_a_gallery_against_brute_force(seed):
    vectors, labels = items(seed, n=30)
    gallery, gallery_labels = items(seed + 10, n=47)
    gallery[:9], gallery_labels[:9] = vectors[:9], labels[:9]
    found = at_r(vectors, labels, gallery=gallery, gallery_labels=gallery_labels, block=4)
    check(found, brute_force(vectors, labels, gallery, gallery_labels))


def test_against_pml_on_data_without_ties():
    """PML works in float32, so that no two neighbours may be as near as its rounding."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(8), [2, 3, 5, 5, 8, 10, 12, 15])
    vectors = rng.standard_normal((8, 16))[labels] + 1.5 * rng.standard_normal((60, 16))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.diff(np.sort(unit @ unit.T), axis=1).min() > 1e-6
    calculator = AccuracyCalculator(
        include=("mean_average_precision_at_r", "r_precision"), k="max_bin_count"
    )
    theirs = calculator.get_accuracy(torch.from_numpy(unit).float(), torch.from_numpy(labels))
    assert 0.2 < theirs["mean_average_precision_at_r"] < 0.8
    assert map_at_r(vectors, labels) == pytest.approx(theirs["mean_average_precision_at_r"])
    assert r_precision(vectors, labels) == pytest.approx(theirs["r_precision"])


def test_the_extremes():
    labels = np.repeat(np.arange(4), 5)
    assert map_at_r(np.eye(4)[labels], labels) == r_precision(np.eye(4)[labels], labels) == 1
    collapsed = np.ones((20, 3))
    assert map_at_r(collapsed, labels) == r_precision(collapsed, labels) == 0
    alone = at_r(np.eye(4), np.arange(4))
    assert alone.average_precision.tolist() == alone.precision.tolist() == [0] * 4
    one_class = at_r(np.random.default_rng(0).random((6, 2)), np.zeros(6, int))
    assert one_class.average_precision.tolist() == [1] * 6


def test_a_query_that_has_no_match_counts_with_0():
    vectors, labels = np.array([[1.0, 0], [1, 0.1], [0, 1]]), np.array([7, 7, 8])
    assert map_at_r(vectors, labels) == pytest.approx(2 / 3)


def test_float16_and_any_order():
    vectors, labels = items(1)
    order = np.random.default_rng(0).permutation(len(labels))
    found = at_r(vectors, labels)
    shuffled = at_r(vectors[order], labels[order])
    assert torch.equal(found.average_precision[order], shuffled.average_precision)
    half = vectors.astype(np.float16)
    check(at_r(torch.from_numpy(half), labels), brute_force(half.astype(np.float64), labels))


@pytest.mark.parametrize("given", [{"gallery": np.eye(3)}, {"gallery_labels": np.arange(3)}])
def test_half_a_gallery_is_refused(given):
    with pytest.raises(UserError, match="go together"):
        at_r(np.eye(3), np.arange(3), **given)


def test_embeddings_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="NaN or infinite in 1 of 2"):
        map_at_r(np.array([[1.0, np.nan], [0, 1]]), np.array([0, 0]))


def without_faiss(monkeypatch, missing):
    if missing:
        monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.mark.parametrize("missing", [False, True])
def test_clusters_that_are_classes_are_found(monkeypatch, missing):
    without_faiss(monkeypatch, missing)
    labels = np.repeat(np.arange(5) * 10, 20)
    rng = np.random.default_rng(0)
    vectors = np.eye(5)[labels // 10] + 0.05 * rng.standard_normal((100, 5))
    vectors *= rng.uniform(0.1, 50, (100, 1))  # lengths say nothing
    found = measure(["ami", "nmi"], vectors, labels)
    assert list(found.values) == ["nmi", "ami"]
    assert list(found.values.values()) == pytest.approx([1, 1])
    assert found.clustering["by"].startswith("scikit-learn" if missing else "faiss")
    assert found.clustering["clusters"] == 5


@pytest.mark.parametrize("missing", [False, True])
def test_scores_are_those_of_sklearn_and_the_same_each_time(monkeypatch, missing):
    without_faiss(monkeypatch, missing)
    vectors, labels = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 6
    first, again = clusters(vectors, labels), clusters(torch.from_numpy(vectors), labels)
    assert (first.of == again.of).all()
    assert len(np.unique(first.of)) == 6
    found = measure(["nmi", "ami"], vectors, labels).values
    assert found["nmi"] == metrics.normalized_mutual_info_score(labels, first.of)
    assert found["ami"] == metrics.adjusted_mutual_info_score(labels, first.of)
    assert abs(found["ami"]) < 0.05 < measures.nmi(np.arange(300) // 2, np.arange(300) % 150)


@pytest.mark.parametrize("missing", [False, True])
def test_few_images_of_a_class_are_warned_of(monkeypatch, missing):
    without_faiss(monkeypatch, missing)
    with pytest.warns(UserWarning, match=r"classes have only 5\.0 images on average"):
        measure(["nmi"], np.random.default_rng(0).standard_normal((50, 3)), np.arange(50) // 5)


def test_only_what_is_asked_for_is_computed(monkeypatch):
    monkeypatch.setattr(measures, "clusters", None)
    assert list(measure(["map_at_r"], *items(0)).values) == ["map_at_r"]
    monkeypatch.setattr(measures, "at_r", None)
    assert measure([], *items(0)).values == {}


def test_a_measure_that_is_none():
    with pytest.raises(UserError, match="there is no measure 'map_at_k'; did you mean map_at_r?"):
        measure(["map_at_k"], *items(0))


# ---- configs and runs


def test_a_config_that_does_not_ask_is_called_as_before():
    plain = load("ice_glyphs")
    assert plain.digest() == "45788d16"
    assert "measures" not in plain.settings()["evaluate"]
    assert load("ice_glyphs", ["evaluate.measures=[]"]).digest() == plain.digest()


def test_a_config_that_asks_is_another_experiment_in_any_order():
    one, other = (load("ice_glyphs", [f"evaluate.measures=[{m}]"]) for m in ("nmi,ami", "ami,nmi"))
    assert one.digest() == other.digest() != load("ice_glyphs").digest()
    assert one.evaluate.measures == ["nmi", "ami"]


def test_a_config_that_asks_is_read_back(tmp_path):
    asked = load("ice_glyphs", ["evaluate.measures=[nmi]"])
    (tmp_path / "x.yaml").write_text(dump(asked))
    assert load(tmp_path / "x.yaml") == asked


def test_measures_that_a_config_cannot_have():
    with pytest.raises(UserError, match=r"evaluate.measures.0: must be one of map_at_r"):
        load("ice_glyphs", ["evaluate.measures=[map]"])
    with pytest.raises(UserError, match="must name each measure once"):
        load("ice_glyphs", ["evaluate.measures=[nmi,nmi]"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    return RunFolder(small_run(output, "evaluate.measures=[map_at_r]"))


def test_a_run_has_the_measures_that_it_was_asked_for(run):
    assert run.result()["measures"].keys() == {"map_at_r"}
    found = zoo.load(run.path).embed_test()
    value = brute_force(found.embeddings, found.labels)[0].mean()
    assert run.result()["measures"]["map_at_r"] == pytest.approx(value, abs=1e-4)
    assert "clustering" not in run.result()


def test_measuring_after_the_fact(run, command):
    before = run.result()
    status, out, _ = command("measure", run.path, "--measures", "r_precision,map_at_r,ami")
    assert status == 0
    after = run.result()
    assert after["measures"].keys() == {"map_at_r", "r_precision", "ami"}
    assert after["measures"]["map_at_r"] == before["measures"]["map_at_r"]
    assert after["clustering"]["clusters"] == before["dataset"]["classes"]
    changed = ("measures", "clustering", "seal")
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    _, heads, row = out.splitlines()
    assert heads.split() == ["run", "R@1", "MAP@R", "R-precision", "AMI"]
    values = [after["recall"]["1"], *(after["measures"][m] for m in MEASURES if m != "nmi")]
    assert row.split() == [run.path.name, *(f"{100 * value:.2f}" for value in values)]


def test_what_is_known_is_not_measured_again(run, command, monkeypatch):
    command("measure", run.path, "--measures", "map_at_r")
    monkeypatch.setattr(measures, "measure", None)
    assert command("measure", run.path, "--measures", "map_at_r")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "nothing: not a run folder"),
        (["nothing", "--measures", "mnist"], "there is no measure 'mnist'"),
        (
            ["nothing", "--measures", ""],
            "--measures: must be names of map_at_r,r_precision,nmi,ami, not ''",
        ),
        (["nothing", "--measures", ","], "--measures: must be names of map_at_r,"),
        (["nothing", "--measures", "nmi,"], "--measures: must be names of"),
    ],
)
def test_what_cannot_be_measured(command, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, out, err = command("measure", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert len(err.splitlines()) == 1


def test_measures_that_cannot_be_kept_are_printed(run, command, monkeypatch):
    def busy(*_):
        raise UserError("another process is working on this run")

    result = run.result()
    del result["measures"]
    (run.path / "result.json").write_text(json.dumps(identity.seal(result)))
    monkeypatch.setattr(RunFolder, "add_measures", busy)
    status, out, err = command("measure", run.path, "--measures", "map_at_r")
    assert status == 0
    assert run.path.name in out
    assert "the measures cannot be saved: another process" in err
    assert "measures" not in run.result()


@pytest.mark.parametrize("damage", [{"MAP": 0.5}, {"nmi": 2}, {"nmi": "0.5"}, [0.5]])
def test_a_result_with_other_measures_is_none(run, tmp_path, damage):
    result = identity.seal(run.result() | {"measures": damage})
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="not the result of a run"):
        RunFolder(tmp_path).result()
