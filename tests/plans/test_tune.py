"""Search of settings: trials, pruned ones, interruptions, and the choice at the end. The processes
only pretend to train."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from pretended import BEGINNING, END

from zoo.errors import UserError
from zoo.plans import live, scheduler
from zoo.plans.engines import child
from zoo.plans.engines.local import Local
from zoo.plans.tune import search as searches
from zoo.plans.tune.trials import tune
from zoo.progress import Reporter

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("few_glyphs")
QUIET = Reporter(quiet=True)

# Stands in for zoo.plans.process: the best scale is 10. What gets no better after a while waits
# for a request to stop; if none comes, it ends as it should.
FAKE = f"""{BEGINNING}
import math, select

scale = float(scale)
share, iteration = 0.3, 20
recall = 1 - abs(math.log10(scale) - 1) / 3
if Path("broken").exists():
    tell(failed="the data are not there")
    sys.exit(1)
with open("log", "a") as log:
    log.write(f"{{scale:g}} {{seed}} {{'test' if test else 'held out'}}\\n")
if scale > 90:
    tell(failed="the loss is not finite", diverged=True)
    sys.exit(1)
folder = Path("runs") / name
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.yaml").write_text(text)
if not test:
    tell(state="training", start=0, total=20)
    for step in range(4, 21, 4):
        with (folder / "metrics.jsonl").open("a") as file:
            line = {{"iteration": step, "recall_of_validation": {{"1": recall}}}}
            file.write(json.dumps(line) + "\\n")
        tell(state="training", iteration=step, recall=recall)
        if recall < 0.9 and step > 4 and select.select([sys.stdin], [], [], 0.3)[0]:
            tell(stopped="saved")
            sys.exit(1)
{END}"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(child, "PROGRAM", FAKE)
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    return tmp_path


def search(trials, *spaces, seeds=None, prune=False, more=()):
    given = ["device=cpu", "name=x", "train.iterations=20", *more]
    return searches.make(
        "ice_glyphs", given, spaces or ["loss.scale=log:1..100"], trials, seeds, prune
    )


def started():
    """Return scale, seed and purpose of the processes since the last look."""
    log = Path("log")
    lines = log.read_text().splitlines() if log.is_file() else []
    log.unlink(missing_ok=True)
    return lines


def states(found):
    return [trial.state.name for trial in found.study().get_trials()]


@pytest.mark.slow
def test_the_best_of_all_trials_is_tested_once():
    found = search(12)
    outcome = tune(found, reporter=QUIET)
    lines = started()
    assert [line.endswith("test") for line in lines] == [False] * 12 + [True]
    scales = [float(line.split()[0]) for line in lines[:-1] if float(line.split()[0]) <= 90]
    best = min(scales, key=lambda scale: abs(scale / 10 - 1))
    assert lines[-1] == f"{best:g} 0 test"
    assert len(set(scales)) > 10
    (result,) = outcome.results
    assert result["selection"] == {
        "settings": {"loss.scale": f"{best:g}" if best % 1 else f"{best:.1f}"},
        "among": {"loss.scale": ["log:1..100"]},
        "candidates": 12,
        "seeds": [0],
    }
    # The same command again shows the result, and runs nothing.
    assert tune(found, reporter=QUIET).results == outcome.results
    assert started() == []
    # More trials go on where the search ended.
    assert len(tune(search(14), reporter=QUIET).choices[0].entrants) >= len(scales)
    assert sum(line.endswith("held out") for line in started()) == 2


@pytest.mark.slow
def test_what_is_worse_than_the_median_is_stopped():
    found = search(12, prune=True)
    outcome = tune(found, reporter=QUIET)
    assert states(found).count("PRUNED") > 1
    assert len(outcome.choices[0].entrants) == states(found).count("COMPLETE")
    assert outcome.unfinished == 0
    measured = [trial for trial in found.study().get_trials() if trial.intermediate_values]
    assert {step for trial in measured for step in trial.intermediate_values} == {4, 8, 12, 16, 20}


@pytest.mark.slow
def test_a_stopped_search_continues_as_if_it_had_not_been(monkeypatch, tmp_path):
    tune(search(8), reporter=QUIET)
    whole = started()
    monkeypatch.chdir(tmp_path / "runs")  # another folder of runs
    seen = []

    def tick(self):
        if len(seen) < 4 and any(
            job.iteration == 8 and job.state == "running" for job in self._jobs
        ):
            seen.append(1)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(live.LiveTable, "tick", tick)
    for _ in range(20):
        outcome = tune(search(8), reporter=QUIET)
        if not outcome.unfinished:
            break
        assert outcome.results == ()
        assert outcome.count == 8
    assert seen
    assert set(started()) == set(whole)


@pytest.mark.slow
def test_the_trial_of_a_killed_command_is_taken_up():
    found = search(3)
    left = found.study().ask({one.key: one.distribution for one in found.space})
    tune(found, reporter=QUIET)
    assert states(found) == ["COMPLETE"] * 3
    assert len(started()) == 4
    assert found.study().trials[0].params == left.params


@pytest.mark.slow
def test_a_trial_with_several_seeds_is_worth_their_mean():
    found = search(2, seeds="0,1")
    (choice,) = tune(found, Local(2), QUIET).choices
    assert [len(entrant.jobs) for entrant in choice.entrants] == [2, 2]
    assert len(started()) == 2 * 2 + 2


def test_whole_numbers_and_names():
    found = search(4, "sampler.per_class=2..4", "loss.scale=8,16", "sampler.classes=log:4..16")
    settings = {"sampler.per_class": 3, "loss.scale": "16", "sampler.classes": 5}
    (drawn,) = found.configs(found.settings(settings))
    assert drawn.sampler.arguments["per_class"] == 3
    assert drawn.loss.arguments["scale"] == 16
    assert [one.whole for one in found.space] == [True, False, True]


@pytest.mark.slow
def test_what_fails_three_times_is_not_tried_any_more():
    Path("broken").touch()
    with pytest.raises(UserError, match="the first 3 trials failed: the data are not there"):
        tune(search(30), reporter=QUIET)
    Path("broken").unlink()
    outcome = tune(search(5), reporter=QUIET)
    assert len(outcome.results) == 1


@pytest.mark.slow
def test_finished_runs_count_though_the_journal_is_lost():
    whole = tune(search(4), reporter=QUIET)
    started()
    search(4).file.unlink()
    assert tune(search(4), reporter=QUIET).results == whole.results
    assert started() == []
    assert states(search(4)).count("RUNNING") == 0


@pytest.mark.slow
def test_a_trial_that_failed_is_tried_again():
    Path("broken").touch()
    outcome = tune(search(2), reporter=QUIET)
    assert {job.reason for job in outcome.failed} == {"the data are not there"}
    assert (outcome.unfinished, outcome.results) == (2, ())
    Path("broken").unlink()
    outcome = tune(search(2), reporter=QUIET)
    assert (len(outcome.results), outcome.failed) == (1, ())
    assert states(search(2)) == ["COMPLETE"] * 2


@pytest.mark.parametrize("key", ["seed", "name", "output", "train.processes", "evaluate.every"])
def test_what_is_no_part_of_a_method_is_not_searched(key):
    with pytest.raises(UserError, match=f"{key} cannot be searched"):
        search(2, f"{key}=1..5")


@pytest.mark.slow
@pytest.mark.parametrize("rubbish", [b"{rubbish}\n", b"[1]\n"])
def test_a_damaged_journal_is_reported(rubbish):
    found = search(2)
    tune(found, reporter=QUIET)
    lines = found.file.read_bytes().splitlines(keepends=True)
    found.file.write_bytes(lines[0] + rubbish + b"".join(lines[1:]))
    with pytest.raises(UserError, match=f"{re.escape(str(found.file))}: is damaged"):
        tune(found, reporter=QUIET)


def test_held_out_classes_and_measurements_are_added_where_they_are_missing():
    assert search(1).base.evaluate.validation == 0.3
    assert search(1).every == 4
    own = search(1, more=["evaluate.validation=0.5", "evaluate.every=7"])
    assert (own.base.evaluate.validation, own.every) == (0.5, 7)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("loss.scale", "--space loss.scale: must be of the form KEY=0.1..2, KEY=log:1..100"),
        ("loss.scale=", "must be of the form"),
        ("loss.scale=5", "one value leaves nothing to search"),
        ("loss.scale=5,5", "one value leaves nothing to search"),
        ("loss.scale=5..1", "the range goes from 5 to 1, which is empty"),
        ("loss.scale=1..x", "'x' is not a number"),
        ("loss.scale=1..inf", "'inf' is not a number"),
        ("loss.scale=log:0..10", "a logarithmic range must begin above 0"),
        ("loss.scale=log:1", "one value leaves nothing to search"),
        ("train.iterations=-5..10", "train.iterations=-5 cannot be set"),
        ("loss.scal=1..10", "did you mean scale"),
        ("nothing.here=1..10", "nothing.here=1 cannot be set"),
        ("loss=ice,iec", "loss=iec cannot be set"),
        ("loss.scale=[1", "must be of the form"),
    ],
)
def test_a_wrong_space_is_refused(space, message):
    with pytest.raises(UserError) as refused:
        search(3, space)
    assert message in str(refused.value)


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(UserError, match="give --space"):
        searches.make("ice_glyphs", [], [], 3)
    with pytest.raises(UserError, match=r"loss\.scale=1\.0 loss=rll do not go together"):
        search(3, "loss.scale=log:1..100", "loss=ice,rll")
    with pytest.raises(UserError, match="given twice"):
        search(3, "loss.scale=1..2", "loss.scale=2..3")
    with pytest.raises(UserError, match=r"train\.iterations is 0"):
        searches.make("ice_glyphs", ["train.iterations=0"], ["loss.scale=1..2"], 3)
    with pytest.raises(UserError, match="holds several experiments; give sweep=null"):
        searches.make("ablation/scale_glyphs", [], ["optimizer.lr=1..2"], 3)
