"""Settings of a sweep compete on held-out classes; most runs are processes that only pretend."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from pretended import BEGINNING, END
from rich.console import Console

from zoo import runner
from zoo.cli import main
from zoo.plans import contest as plans_contest
from zoo.plans import planning, running, scheduler
from zoo.plans.engines import child
from zoo.plans.live import figures
from zoo.progress import Reporter
from zoo.runs.folder import RESULT, VALIDATION

pytestmark = pytest.mark.usefixtures("few_glyphs")
QUIET = Reporter(quiet=True)

# Stands in for zoo.plans.process: scale and seed say how good a run is on held-out classes.
FAKE = f"""{BEGINNING}
with open("log", "a") as log:
    log.write(f"{{scale}} {{seed}} {{'test' if test else 'held out'}}\\n")
if scale == "666":
    tell(failed="the loss is not finite", diverged=True)
    sys.exit(1)
if scale == "7" and not Path("data").exists():
    tell(failed="the data are not there")
    sys.exit(1)
folder = Path("runs") / name
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.yaml").write_text(text)
share, iteration = 0.2, 10 + seed
recall = json.load(open("scores"))[scale][seed]
{END}"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(child, "PROGRAM", FAKE)
    monkeypatch.setattr(scheduler, "_TICK", 0.02)
    scores = {"1": [0.6, 0.6], "2": [0.9, 0.5], "3": [0.7, 0.7], "4": [0.8, 0.6], "7": [0.8, 0.8]}
    Path("scores").write_text(json.dumps(scores))
    return tmp_path


SETTINGS = ["device=cpu", "name=x", "train.iterations=20", "evaluate.validation=0.2"]


def plan(scales, seeds="0,1", *more):
    return planning.make(["ice_glyphs"], [*SETTINGS, *more], [f"loss.scale={scales}"], seeds)


def started():
    """Return scale, seed and purpose of the processes since the last look."""
    log = Path("log")
    lines = log.read_text().splitlines() if log.is_file() else []
    log.unlink(missing_ok=True)
    return lines


def shown(choice):
    console = Console(width=200, file=io.StringIO())
    console.print(plans_contest.table(choice))
    return console.file.getvalue()


def selection(job):
    return json.loads((job.folder.path / RESULT).read_text())["selection"]


# ---- who competes


@pytest.mark.parametrize(
    ("sources", "scales", "seeds"),
    [
        (["ice_glyphs"], "1,2", "0,0"),
        (["ice_glyphs"], "1,1.0,2", "0"),
        (["ice_glyphs", "ice_glyphs"], "1,2", "0"),
    ],
)
@pytest.mark.slow
def test_what_is_asked_for_twice_competes_once(sources, scales, seeds):
    found = planning.make(sources, SETTINGS, [f"loss.scale={scales}"], seeds)
    (contest,) = found.contests
    assert [run.number for run in contest.runs] == [0, 1]
    (choice,) = running.run(found, reporter=QUIET).choices
    assert [len(entrant.jobs) for entrant in choice.entrants] == [1, 1]
    assert len(choice.chosen.jobs) == len([line for line in started() if "test" in line]) == 1


def test_the_settings_of_a_config_on_the_same_data_compete():
    found = plan("1,2")
    (contest,) = found.contests
    assert [run.number for run in contest.runs] == [0, 1, 2, 3]
    assert not any(job.test for job in found.jobs)
    assert str(contest) == (
        "x: 2 settings compete on 20 % of the training classes; only the best is measured on the "
        "test classes"
    )


@pytest.mark.parametrize(
    ("sources", "overrides", "sweeps", "seeds"),
    [
        (["ice_glyphs"], SETTINGS, [], "0,1"),  # seeds only
        (["ice_glyphs"], SETTINGS[:-1], ["loss.scale=1,2"], None),  # nothing held back
        (["ice_glyphs", "rll_glyphs"], [s for s in SETTINGS if "name" not in s], [], None),
        (["ice_glyphs"], SETTINGS[:-1], ["evaluate.validation=0.2,0.3"], None),
        (["ice_glyphs"], SETTINGS, ["dataset=glyphs,{name: image_folder, root: a}"], None),
        (["ice_glyphs"], SETTINGS, ["evaluate.ks=[1],[2]"], None),
    ],
)
def test_what_cannot_be_compared_does_not_compete(sources, overrides, sweeps, seeds):
    found = planning.make(sources, overrides, sweeps, seeds)
    assert len(found.jobs) == 2
    assert found.contests == ()
    assert all(job.test for job in found.jobs)


def test_each_data_set_has_its_own_choice():
    sweeps = ["dataset=glyphs,{name: image_folder, root: a}", "loss.scale=1,2"]
    found = planning.make(["ice_glyphs"], SETTINGS, sweeps)
    assert [[run.number for run in contest.runs] for contest in found.contests] == [[0, 1], [2, 3]]


# ---- what is chosen


@pytest.mark.slow
def test_only_the_settings_with_the_best_mean_are_tested():
    found = plan("1,2,3,4")
    outcome = running.run(found, reporter=QUIET)
    assert started() == [
        *(f"{scale} {seed} held out" for scale in (1, 2, 3, 4) for seed in (0, 1)),
        *("2 0 test", "2 1 test"),  # 2, 3 and 4 are equal, and 2 comes first
    ]
    assert [result["run"] for result in outcome.results] == [job.name for job in found.jobs[2:4]]
    assert (outcome.failed, outcome.unfinished) == ((), 0)
    (choice,) = outcome.choices
    assert choice.chosen.settings == {"loss.scale": "2"}
    wanted = {
        "settings": {"loss.scale": "2"},
        "among": {"loss.scale": ["1", "2", "3", "4"]},
        "candidates": 4,
        "seeds": [0, 1],
    }
    assert [selection(job) for job in found.jobs[2:4]] == [wanted] * 2
    lines = shown(choice).splitlines()
    assert lines[0] == "x: the choice on 20 % of the training classes"
    assert " ".join(lines[1].split()) == "settings seeds iteration validation R@1 R@1 R@2"
    assert " ".join(lines[3].split()[2:]) == "10, 11 70.00 ± 28.28 25.00 ± 0.00 50.00 ± 0.00"
    assert [line.split()[0] for line in lines[2:6]] == [f"loss.scale={s}" for s in range(1, 5)]
    assert all(line.split()[-2:] == ["–", "–"] for line in (lines[2], *lines[4:6]))
    by = "chosen by validation R@1, the mean of 2 seeds: loss.scale=2 of 1, 2, 3, 4"
    assert lines[6] == by


@pytest.mark.slow
def test_the_same_plan_again_does_nothing():
    first = shown(running.run(plan("1,2"), reporter=QUIET).choices[0])
    started()
    outcome = running.run(plan("1,2"), reporter=QUIET)
    assert started() == []
    assert len(outcome.results) == 2
    assert shown(outcome.choices[0]) == first


@pytest.mark.slow
def test_more_settings_are_a_new_choice():
    running.run(plan("1,2"), reporter=QUIET)
    started()
    running.run(plan("1,2,4"), reporter=QUIET)  # 2 again, but of three
    assert started() == ["4 0 held out", "4 1 held out"]
    again = plan("1,2,4,7").jobs
    assert selection(again[2])["among"] == {"loss.scale": ["1", "2", "4"]}
    Path("data").touch()
    outcome = running.run(plan("1,2,4,7"), reporter=QUIET)
    assert started() == ["7 0 held out", "7 1 held out", "7 0 test", "7 1 test"]
    assert [result["run"] for result in outcome.results] == [job.name for job in again[6:]]


@pytest.mark.slow
def test_what_diverges_is_left_out():
    outcome = running.run(plan("1,666,4"), reporter=QUIET)
    (choice,) = outcome.choices
    assert choice.chosen.settings == {"loss.scale": "4"}
    assert started()[-2:] == ["4 0 test", "4 1 test"]
    text = shown(choice)
    assert "left out: loss.scale=666: the loss is not finite" in text
    assert "loss.scale=4 of 1, 4\n" in text
    assert len(outcome.failed) == 2


def test_if_all_diverge_nothing_is_chosen():
    Path("scores").write_text("{}")
    found = planning.make(["ice_glyphs"], SETTINGS, ["loss.scale=666", "optimizer.lr=1,2"])
    (choice,) = running.run(found, reporter=QUIET).choices
    assert "nothing is chosen: no settings finished with every seed" in shown(choice)


@pytest.mark.slow
def test_as_long_as_a_run_is_missing_nothing_is_tested():
    (choice,) = running.run(plan("1,7"), reporter=QUIET).choices
    assert all(line.endswith("held out") for line in started())
    text = shown(choice)
    assert "nothing is chosen: 2 of 4 runs have not ended" in text
    assert "R@2" not in text
    Path("data").touch()
    running.run(plan("1,7"), reporter=QUIET)
    assert started() == ["7 0 held out", "7 1 held out", "7 0 test", "7 1 test"]


@pytest.mark.slow
def test_settings_that_lack_a_seed_are_not_compared():
    Path("x.yaml").write_text(
        "extends: ice_glyphs\nsweep:\n- {loss.scale: 1, seed: 0}\n- {loss.scale: 1, seed: 1}\n"
        "- {loss.scale: 2, seed: 0}\n"
    )
    (choice,) = running.run(planning.make(["x.yaml"], SETTINGS), reporter=QUIET).choices
    assert choice.chosen.settings == {"loss.scale": "1"}


def test_a_damaged_record_is_a_failure_and_nothing_is_chosen():
    running.run(plan("1,7"), reporter=QUIET)
    damaged = plan("1,7").jobs[0].folder.path / VALIDATION
    damaged.write_text("{}")
    Path("data").touch()
    outcome = running.run(plan("1,7"), reporter=QUIET)
    assert str(damaged) in outcome.failed[0].reason
    assert outcome.choices[0].chosen is None


def test_after_a_signal_the_chosen_run_waits(monkeypatch):
    class Stopped(scheduler.Scheduler):
        def run(self):
            super().run()
            self.signals = 1

    monkeypatch.setattr(running, "Scheduler", Stopped)
    outcome = running.run(plan("1,2"), reporter=QUIET)
    assert all(line.endswith("held out") for line in started())
    assert outcome.unfinished == 2
    text = shown(outcome.choices[0])
    assert "the test classes are not all measured yet" in text
    assert "loss.scale=2 of 1, 2" in text


# ---- what is shown


@pytest.mark.slow
def test_the_command_that_is_named_trains_it_on_all_classes():
    more = ["evaluate.every=5", "schedule=constant"]
    outcome = running.run(plan("1,3", "0,1", *more), reporter=QUIET)
    line = shown(outcome.choices[0]).splitlines()[-1]
    intro, command = line.split(": ", 1)
    assert intro == "to train it on all training classes"
    zoo, run, *arguments, flag, seeds = shlex.split(command)
    assert (zoo, run, flag, seeds) == ("zoo", "run", "--seeds", "0,1")
    found = planning.make(*map(list, planning.sort(arguments)), [], seeds)
    for job, seed in zip(found.jobs, (0, 1), strict=True):
        config = job.config
        assert config.loss.arguments["scale"] == 3
        assert (config.name, config.seed, config.train.iterations) == ("x", seed, 10)
        assert (config.evaluate.validation, config.evaluate.every) == (None, None)
        assert job.test


@pytest.mark.parametrize("more", [[], ["schedule={name: constant, warmup: 11}"]])
@pytest.mark.slow
def test_the_learning_rates_of_the_command_are_those_of_the_choice(more):
    outcome = running.run(plan("1,3", "0", "evaluate.every=5", *more), reporter=QUIET)
    command = shown(outcome.choices[0]).splitlines()[-1]
    assert command.endswith("evaluate.every=null train.iterations=10 schedule.over=20")


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["zoo", "run", "ice_glyphs", *SETTINGS, *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    return end.value.code or 0


@pytest.mark.slow
def test_the_command_shows_the_choice_and_the_tested_runs(monkeypatch, capsys):
    assert run_command(monkeypatch, "--sweep", "loss.scale=1,3", "--dry-run") == 0
    assert "x: 2 settings compete on 20 % of the training classes" in capsys.readouterr().out
    assert run_command(monkeypatch, "--sweep", "loss.scale=1,3") == 0
    shown = capsys.readouterr()
    assert "validation R@1 70.00" in shown.err
    assert "chosen by validation R@1: loss.scale=3 of 1, 3" in shown.out
    assert "Recall@K" in shown.out
    assert run_command(monkeypatch, "--sweep", "loss.scale=1,3", "--dry-run") == 0
    assert "2 runs: 2 finished" in capsys.readouterr().out
    assert run_command(monkeypatch, "--sweep", "loss.scale=1,666") == 1


@pytest.mark.slow
def test_the_recall_of_the_test_is_not_mistaken_for_that_of_held_out_classes():
    found = plan("1,2").jobs[0]
    found.update({"recall": 0.5})
    assert figures(found)[2] == "50.00"
    outcome = running.run(plan("1,2"), reporter=QUIET)
    assert [job.recall for job in outcome.choices[0].chosen.jobs] == [0.25, 0.25]


# ---- for real


@pytest.mark.slow
def test_runs_compete_for_real(tmp_path, monkeypatch):
    monkeypatch.undo()
    root = tmp_path / "photographs"
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        for c in range(8):
            (root / split / f"{split}{c}").mkdir(parents=True)
            for i in range(3):
                pixels = torch.randint(256, (16, 16, 3), dtype=torch.uint8, generator=generator)
                Image.fromarray(pixels.numpy()).save(root / split / f"{split}{c}" / f"{i}.png")
    settings = [
        f"dataset={{name: image_folder, root: {root}}}",
        *("images.crop=16", "model={backbone: {name: convnet, width: 2}, embedding_size: 4}"),
        *("sampler={name: m_per_class, classes: 2, per_class: 2}", "device=cpu"),
        *("train.iterations=4", "evaluate={validation: 0.5, every: 2}", f"output={tmp_path}/runs"),
    ]
    found = planning.make(["ice_glyphs"], settings, ["loss.scale=1,64"])
    for job in found.jobs:  # here, since a process takes its time to start; the last one has one
        runner.run(job.config, reporter=QUIET, test=False)
    outcome = running.run(found, reporter=QUIET)
    assert outcome.failed == ()
    (result,) = outcome.results
    (chosen,) = outcome.choices[0].chosen.jobs
    assert result["run"] == chosen.name
    assert result["selection"]["among"] == {"loss.scale": ["1", "64"]}
    best = max(job.folder.candidate()["validation"]["recall"]["1"] for job in found.jobs)
    assert result["validation"]["recall"]["1"] == best
    assert [job.folder.finished for job in found.jobs].count(True) == 1
    # What was tested is what a run for itself would have given.
    monkeypatch.chdir(tmp_path)
    alone = chosen.config.model_copy(update={"output": "alone"})
    again = runner.run(alone, reporter=QUIET)
    for key in ("recall", "iteration", "validation"):
        assert again[key] == result[key]
