"""Runs compared: pairs, verdicts, what is refused, and which rows are as good as the best."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from small_run import downgrade_to_0_1_0

import zoo
from zoo.comparing import significance, table
from zoo.comparing.compare import compare, read
from zoo.comparing.standings import standings
from zoo.runs.experiments import find
from zoo.runs.folder import RunFolder

QUERIES, CLASSES = 400, 40
LABELS = np.repeat(np.arange(CLASSES), QUERIES // CLASSES)


def ranks_of(share, seed=0, n=QUERIES):
    """Return ranks of which about this share are 1."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < share, 1, rng.integers(2, 12, n)).astype(np.int32)


def write(place, config, ranks, *, seed=0, digest="0a1b2c3d", fingerprint="f0", labels=LABELS):
    """Write the folder of a finished run."""
    folder = RunFolder(place / f"{config}-{digest}-s{seed}")
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text("extends: nothing\n")
    result = {
        "run": folder.path.name,
        "config": config,
        "digest": digest,
        "seed": seed,
        "dataset": {"name": "glyphs", "fingerprint": fingerprint},
        "loss": "ice",
        "backbone": "convnet",
        "embedding_size": 64,
        "recall": {str(k): float((ranks <= k).mean()) for k in (1, 2, 4)},
        "seconds": {"training": 1.0},
    }
    folder.finish(result, ranks, labels)
    if labels is None:
        (folder.path / "labels.npy").unlink()
    return folder


def compared(a, b, ks=None):
    a, b = (side if isinstance(side, list) else [side] for side in (a, b))
    return compare(read(a), read(b), ks)


@pytest.fixture
def two(tmp_path):
    """Two runs, of which the first is better."""
    a, b = ranks_of(0.8, 0), ranks_of(0.6, 1)
    return write(tmp_path, "good", a), write(tmp_path, "bad", b), a, b


def test_one_pair_against_scipy(two):
    good, bad, a, b = two
    found = compared(good, bad)
    assert [at.k for at in found.at] == [1, 2, 4]
    for at in found.at:
        hits, others = a <= at.k, b <= at.k
        only_a, only_b = (hits & ~others).sum(), (others & ~hits).sum()
        assert (at.only_a, at.only_b) == (only_a, only_b)
        assert (at.a, at.b) == (hits.mean(), others.mean())
        assert at.queries.p == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue)
        by_class = (hits.astype(int) - others).reshape(CLASSES, -1).sum(1)
        assert at.classes.p == significance.sign_flip(by_class)
        assert at.classes.units == CLASSES
        low, high = at.classes.interval
        assert low < at.a - at.b < high
        assert at.seeds is at.seeds_exact is None
    assert found.at[0].classes.better == "A"
    assert compared(bad, good).at[0].classes.better == "B"


def test_p_is_corrected_for_the_ks(two):
    good, bad, *_ = two
    found = compared(good, bad)
    ps = [at.classes.p for at in found.at]
    assert [at.classes.corrected for at in found.at] == significance.holm(ps)
    (alone,) = compared(good, bad, [1]).at
    assert alone.classes.corrected == alone.classes.p == ps[0]


def test_a_run_is_no_better_than_itself(two):
    good, *_ = two
    for at in compared(good, good).at:
        assert at.queries.p == at.classes.p == at.mid_p == 1
        assert at.classes.interval == (0, 0)
        assert at.classes.better is at.queries.better is None


def test_seeds_are_paired(tmp_path):
    """Three of A, three of B in another order; those without a partner are left out."""
    a = [write(tmp_path, "a", ranks_of(0.8, s), seed=s) for s in (0, 1, 2, 7)]
    b = [write(tmp_path, "b", ranks_of(0.7, 10 + s), seed=s) for s in (2, 0, 1)]
    found = compared(a, b, [1])
    assert found.a == tuple(f"a-0a1b2c3d-s{s}" for s in (0, 1, 2))
    assert found.b == tuple(f"b-0a1b2c3d-s{s}" for s in (0, 1, 2))
    assert found.left_out == ("a-0a1b2c3d-s7",)
    hits = [[(run.ranks() <= 1).mean() for run in side] for side in (a[:3], [b[1], b[2], b[0]])]
    theirs = stats.ttest_rel(*hits)
    (at,) = found.at
    assert at.seeds.p == pytest.approx(theirs.pvalue)
    assert at.seeds.interval == pytest.approx(tuple(theirs.confidence_interval()))
    assert at.seeds_exact == 0.25
    assert at.a == pytest.approx(np.mean(hits[0]))
    assert at.mid_p is None


def test_a_query_swaps_in_all_seeds_at_once(tmp_path):
    """The same run three times over is no more evidence than once."""
    a = [write(tmp_path, "a", ranks_of(0.75, 0), seed=s) for s in range(3)]
    b = [write(tmp_path, "b", ranks_of(0.7, 1), seed=s) for s in range(3)]
    (once,), (thrice,) = compared(a[0], b[0], [1]).at, compared(a, b, [1]).at
    assert thrice.queries.p == pytest.approx(once.queries.p)
    assert thrice.classes.p == pytest.approx(once.classes.p)
    assert thrice.classes.interval == pytest.approx(once.classes.interval)
    assert thrice.seeds is None  # all differences are equal: a t test has no meaning


def test_of_several_seeds_one_can_be_compared(tmp_path):
    a = [write(tmp_path, "a", ranks_of(0.8, s), seed=s) for s in (0, 1)]
    b = write(tmp_path, "b", ranks_of(0.7, 5), seed=1)
    assert compared(a, b).a == ("a-0a1b2c3d-s1",)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"fingerprint": "f1"}, r"a-\S+ and b-\S+ were tested on other images: glyphs \(finger"),
        ({"ranks": ranks_of(0.5, n=390)}, "were tested on 400 and 390 queries"),
    ],
)
def test_other_queries_are_refused(tmp_path, other, said):
    a = write(tmp_path, "a", ranks_of(0.8))
    b = write(tmp_path, "b", other.pop("ranks", ranks_of(0.7)), **other)
    with pytest.raises(zoo.UserError, match=said):
        compared(a, b)


def test_seeds_that_have_none_in_common_are_refused(tmp_path):
    a = [write(tmp_path, "a", ranks_of(0.8, s), seed=s) for s in (0, 1)]
    b = [write(tmp_path, "b", ranks_of(0.7, s), seed=s) for s in (2, 3)]
    with pytest.raises(zoo.UserError, match="A has the seeds 0, 1, B has 2, 3: none in common"):
        compared(a, b)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_a_k_beyond_what_was_measured_is_refused(two, k):
    with pytest.raises(zoo.UserError, match=f"K must be from 1 to 4, .* not {k}"):
        compared(two[0], two[1], [k])


def test_without_classes_queries_decide(tmp_path):
    a = write(tmp_path, "a", ranks_of(0.8, 0), labels=None)
    b = write(tmp_path, "b", ranks_of(0.6, 1), labels=None)
    found = compared(a, b)
    assert found.at[0].classes is None
    assert found.at[0].networks is found.at[0].queries
    assert found.at[0].queries.better == "A"
    assert "nothing" in found.without_classes  # the config in the folder cannot be read
    (note,) = [n for n in table.notes(found) if "not known" in n]
    assert "p is too small" in note
    console = Console(width=40, file=io.StringIO())
    console.print(table.to_table(found, 40))
    heads = console.file.getvalue().split("\nK")[1].split("\n")[0]
    assert re.split("  +", heads.strip()) == ["A - B", "p of queries", "verdict"]


def test_one_run_that_kept_its_classes_is_enough(tmp_path):
    a = write(tmp_path, "a", ranks_of(0.8, 0), labels=None)
    b = write(tmp_path, "b", ranks_of(0.6, 1))
    assert compared(a, b).at[0].classes.units == CLASSES
    np.save(b.path / "labels.npy", LABELS[:-1])
    assert compared(a, b).at[0].classes is None


def test_a_run_of_before_asks_its_data_set(noisy_run):
    run = RunFolder(downgrade_to_0_1_0(noisy_run))
    kept = compared(run, run, [1]).at[0].classes
    (run.path / "labels.npy").unlink()
    assert compared(run, run, [1]).at[0].classes == kept
    other = json.loads((run.path / "result.json").read_text())
    other["dataset"]["fingerprint"] = "other"
    (run.path / "result.json").write_text(json.dumps(other))
    assert "the images have changed since the test" in compared(run, run, [1]).without_classes


def test_damaged_labels(two):
    (two[0].path / "labels.npy").write_bytes(b"nothing")
    with pytest.raises(zoo.UserError, match=r"labels.npy: not the file that the run wrote"):
        two[0].labels()
    assert compared(two[0], two[1]).at[0].classes is not None  # of the other


# ---- names


def test_names_of_runs_and_experiments(tmp_path):
    for seed in range(3):
        write(tmp_path, "ice", ranks_of(0.8), seed=seed)
    write(tmp_path, "ice_big", ranks_of(0.8))
    write(tmp_path, "rll", ranks_of(0.8), digest="11111111")
    write(tmp_path, "rll", ranks_of(0.8), digest="22222222")

    def names(text):
        return [run.path.name for run in find(text, tmp_path)]

    of_ice = [f"ice-0a1b2c3d-s{seed}" for seed in range(3)]
    assert names("ice") == names("ice-0a1b2c3d") == names("ice-") == of_ice
    assert names("ice-0a1b2c3d-s1") == names(str(tmp_path / "ice-0a1b2c3d-s1")) == of_ice[1:2]
    assert names(str(tmp_path / "ice")) == of_ice
    assert names("ice_b") == ["ice_big-0a1b2c3d-s0"]
    assert names("rll-2") == ["rll-22222222-s0"]
    with pytest.raises(zoo.UserError, match="rll may be rll-11111111 or rll-22222222; say which"):
        names("rll")
    for text in ("", "other", "../x", "\0"):
        with pytest.raises(zoo.UserError, match="not a run folder"):
            names(text)


def test_a_run_that_is_renamed_is_found(tmp_path):
    shutil.move(write(tmp_path, "a", ranks_of(0.8)).path, tmp_path / "mine")
    assert find(str(tmp_path / "mine"))[0].path == tmp_path / "mine"
    assert find("mine", tmp_path)[0].path == tmp_path / "mine"


def test_what_is_not_finished_is_left_out(tmp_path):
    runs = [write(tmp_path, "a", ranks_of(0.8), seed=seed) for seed in (0, 1)]
    (runs[0].path / "result.json").unlink()
    with pytest.warns(UserWarning, match="not finished, left out: a-0a1b2c3d-s0"):
        assert [run.path for run in find("a", tmp_path)] == [runs[1].path]
    with pytest.raises(zoo.UserError, match="s0: the run is not finished"):
        find("a-0a1b2c3d-s0", tmp_path)
    (runs[1].path / "result.json").unlink()
    with pytest.raises(zoo.UserError, match="a: no run of 2 is finished"):
        find("a", tmp_path)


# ---- the command


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        write(tmp_path / "runs", "good", ranks_of(0.8, seed), seed=seed)
        write(tmp_path / "runs", "bad", ranks_of(0.6, 9 + seed), seed=seed)
    return tmp_path / "runs"


def test_the_command_on_experiments(runs, command):
    status, out, err = command("compare", "good", "bad")
    assert (status, err) == (0, "")
    assert "A  good-0a1b2c3d-s0, good-0a1b2c3d-s1, good-0a1b2c3d-s2" in out
    assert "glyphs: 400 queries of 40 classes" in out
    assert "These networks, on other classes of this kind" in out
    assert "Networks trained again, on these images: 3 seeds" in out
    assert "A is better" in out
    assert "cannot give less than p = 0.25; for p < 0.05 it needs 6 seeds" in " ".join(out.split())
    assert "p is corrected for 3 K (Holm)" in out


def test_the_command_on_two_runs(runs, command):
    _, out, _ = command("compare", "runs/good-0a1b2c3d-s0", "bad-0a1b2c3d-s2", "--ks", "1")
    assert "trained again" not in out
    assert "corrected" not in out
    assert "this compares two trained networks, not two losses" in out


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (100, []),
        (90, ["only A", "only B"]),
        (80, ["only A", "only B", "p of queries"]),
        (60, ["A", "B", "only A", "only B", "p of queries"]),
        (40, ["A", "B", "95 %", "only A", "only B", "p of queries"]),
    ],
)
def test_a_row_is_a_line_with_the_columns_that_fit(runs, command, monkeypatch, width, left_out):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = command("compare", "good", "bad")
    lines = out.splitlines()
    assert "…" not in out
    assert max(map(len, lines)) <= width
    first = next(i for i, line in enumerate(lines) if line.startswith("K "))
    heads = ["K", "A", "B", "A - B", "95 %", "only A", "only B", "p of queries", "p of classes"]
    assert re.split("  +", lines[first].strip()) == [
        *(head for head in heads if head not in left_out),
        "verdict",
    ]
    rows = lines[first + 1 : first + 4]
    assert [row.split()[0] for row in rows] == ["1", "2", "4"]
    assert all(re.search(r"  (A is better|B is better|unclear) *$", row) for row in rows)
    said = f"Not shown at a width of {width}: {', '.join(left_out)}"
    assert " ".join(out.split()).count(said) == (1 if left_out else 0)


def test_the_command_in_json(runs, command):
    _, out, _ = command("compare", "good", "bad", "--json")
    found = json.loads(out)
    assert found["a"] == [f"good-0a1b2c3d-s{seed}" for seed in range(3)]
    first = found["at"][0]
    assert first["k"] == 1
    assert first["classes"]["better"] == "A"
    assert first["classes"]["interval"][0] > 0
    assert first["seeds"]["units"] == 3
    assert any("Holm" in note for note in found["notes"])


@pytest.mark.slow
def test_the_command_without_torch(runs):
    code = (
        "import sys; from zoo.cli.main import main; sys.argv = ['zoo', 'compare', 'good', 'bad']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["good", "nothing"], "nothing: not a run folder"),
        (["good", ""], "'': not a run folder"),
        (["good", "bad", "--ks", "one"], "--ks: must be whole numbers such as 1,10, not 'one'"),
        (["good", "bad", "--ks", "1,99"], "K must be from 1 to 4"),
    ],
)
def test_what_the_command_refuses(runs, command, arguments, said):
    status, out, err = command("compare", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert len(err.splitlines()) == 1


def test_names_cannot_steer_the_terminal(tmp_path, command):
    path = write(tmp_path, "a", ranks_of(0.8)).path
    evil = tmp_path / "[red]\x1b[31mevil"
    shutil.move(path, evil)
    _, out, _ = command("compare", evil, evil)
    assert "[red]\\x1b[31mevil" in out
    assert "\x1b" not in out


# ---- standings


def places(rows, k=1):
    return [standing.place for standing in standings(rows, k)]


def test_rows_that_are_not_worse_than_the_best(tmp_path):
    best = write(tmp_path, "best", ranks_of(0.84, 0))
    near = write(tmp_path, "near", ranks_of(0.78, 1))
    far = write(tmp_path, "far", ranks_of(0.5, 2))
    rows = [[near], [far], [best]]
    assert places(rows) == ["not worse", "worse", "best"]
    found = standings(rows, 1)
    ps = [compared(best, run, [1]).at[0].classes.p for run in (near, far)]
    assert [found[0].p, found[1].p] == significance.holm(ps)
    assert found[1].reason == "permutation test over 40 classes, 1 run"
    assert found[2].p is None


def test_with_three_seeds_rows_are_compared_over_these(tmp_path):
    rows = [
        [write(tmp_path, name, ranks_of(share, 10 * n + s), seed=s) for s in range(3)]
        for n, (name, share) in enumerate({"a": 0.8, "b": 0.4, "c": 0.79}.items())
    ]
    found = standings(rows, 1)
    assert found[1].place == "worse"
    assert found[1].reason == "t test over 3 seeds"
    assert {found[0].place, found[2].place} == {"best", "not worse"}


def test_rows_that_cannot_be_compared_say_why(tmp_path):
    best = write(tmp_path, "best", ranks_of(0.8))
    other = write(tmp_path, "other", ranks_of(0.7), fingerprint="f1")
    lost = write(tmp_path, "lost", ranks_of(0.9))
    (lost.path / "ranks.npy").unlink()
    late = write(tmp_path, "late", ranks_of(0.7), seed=5)
    seeds = [write(tmp_path, "seeds", ranks_of(0.7), seed=s) for s in (1, 2)]
    rows = [[best], [other], [lost], [late], seeds]
    found = standings(rows, 1)
    assert [one.place for one in found] == ["best", "unknown", "unknown", "worse", "unknown"]
    assert "other images" in found[1].reason
    assert "ranks.npy: missing" in found[2].reason
    assert "none in common" in found[4].reason
    assert places([[lost]]) == ["unknown"]
    assert "Recall@3 was not measured" in standings(rows, 3)[0].reason


def test_one_row_is_the_best(tmp_path):
    assert places([[write(tmp_path, "a", ranks_of(0.5))]]) == ["best"]
    assert standings([], 1) == []


@pytest.mark.slow
def test_five_percent_of_equal_pairs_are_called_different(tmp_path, monkeypatch):
    """The verdict itself, of 2,000 pairs of simulated runs."""
    monkeypatch.setattr(significance, "DRAWS", 10)
    rng = np.random.default_rng(0)
    folder = write(tmp_path, "a", ranks_of(0.5))
    (run,) = read([folder])
    chance = 1 / (1 + np.exp(-2 - 2 * rng.standard_normal((2_000, QUERIES))))
    hits = rng.random((2, 2_000, QUERIES)) < chance
    called = sum(
        compare(
            [run._replace(ranks=np.where(a, 1, 2))], [run._replace(ranks=np.where(b, 1, 2))], [1]
        )
        .at[0]
        .classes.better
        is not None
        for a, b in zip(*hits, strict=True)
    )
    assert 0.04 <= called / 2_000 <= 0.06
