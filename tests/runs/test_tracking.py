"""Trackers in a run: what they are given, and that none of them ends a run."""

from __future__ import annotations

import csv
import json
import sys

import pytest
import small_run as small
from small_run import small_run

import zoo
from zoo import UserError, runner
from zoo.config import dump, load
from zoo.registry import components
from zoo.runs.folder import RunFolder
from zoo.runs.plugins import plugins_of
from zoo.training.step import Trainer


class Notes:
    """Remembers what it is told."""

    told: list = []  # noqa: RUF012

    def __init__(self, run_name, settings, mark: str = ""):
        self.mark = mark
        assert settings["loss"]["name"] == "ice"
        assert run_name.startswith("ice_glyphs-")

    def begin(self, iteration):
        self.told.append((self.mark, "begin", iteration))

    def log(self, iteration, values):
        self.told.append((self.mark, "log", iteration, values))

    def end(self, finished):
        self.told.append((self.mark, "end", finished))


class Broken(Notes):
    """Fails in one of its methods."""

    def __init__(self, run_name, settings, where: str = "log"):
        super().__init__(run_name, settings, where)

    def begin(self, iteration):
        if self.mark == "begin":
            raise ConnectionError("no route to host")
        super().begin(iteration)

    def log(self, iteration, values):
        values.clear()
        if self.mark == "log":
            raise SystemExit(3)
        super().log(iteration, values)

    def end(self, finished):
        if self.mark == "end":
            raise RuntimeError("it was\nclosed")


def another_run(monkeypatch, folder, *changes):
    """Make a small run in which some of its usual settings are replaced."""
    keys = {change.split("=")[0] for change in changes}
    kept = tuple(one for one in small.SETTINGS if one.split("=")[0] not in keys)
    monkeypatch.setattr(small, "SETTINGS", kept)
    return small_run(folder, *changes)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(components, "_registered", {})
    zoo.register("trackers", "notes")(Notes)
    zoo.register("trackers", "broken")(Broken)
    monkeypatch.setattr(Notes, "told", [])
    return Notes.told


def test_it_is_told_all_numbers_of_a_run(told, tmp_path):
    run = small_run(tmp_path, "trackers=notes", "evaluate.every=1", "evaluate.ks=[1,3]")
    assert told[0] == ("", "begin", 0)
    assert told[-1] == ("", "end", True)
    logged = [(at, values) for _, what, at, *rest in told if what == "log" for values in rest]
    assert [at for at, _ in logged] == [1, 1, 2, 2]
    assert set(logged[0][1]) == {"loss", "gradient_norm", "lr"}
    assert set(logged[1][1]) == {"recall_at_1", "recall_at_3"}
    lines = RunFolder(run).metrics()
    assert logged[0][1]["loss"] == lines[0]["loss"]
    result = json.loads((run / "result.json").read_text())
    assert logged[-1][1] == {f"recall_at_{k}": v for k, v in result["recall"].items()}


def test_a_run_that_was_stopped_goes_on(told, tmp_path, monkeypatch):
    def stop(self, batch):
        if self.iteration == 2:
            raise KeyboardInterrupt
        return step(self, batch)

    step = Trainer.step
    more = ["trackers=notes", "train.iterations=3", "train.checkpoint_every=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            another_run(monkeypatch, tmp_path, *more)
    assert told[-1] == ("", "end", False)
    told.clear()
    another_run(monkeypatch, tmp_path, *more)
    assert told[0] == ("", "begin", 2)
    assert told[-1] == ("", "end", True)


def test_numbers_of_levels_and_of_held_out_classes_have_names(told, tmp_path, monkeypatch):
    another_run(
        monkeypatch,
        tmp_path,
        "trackers=notes",
        "model.slices=[3, 5]",
        "evaluate.validation=0.5",
        "sampler.classes=2",
    )
    names = {name for _, what, *rest in told if what == "log" for name in rest[1]}
    assert {"loss_of_levels_1", "loss_of_levels_2", "validation_recall_at_1"} <= names


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("begin", r"the tracker broken failed in begin\(\) \(ConnectionError: no route to host\)"),
        ("log", r"the tracker broken failed in log\(\) \(SystemExit: 3\); the run goes on"),
        ("end", r"the tracker broken failed in end\(\) \(RuntimeError: it was closed\)"),
    ],
)
def test_one_that_fails_does_not_end_the_run(told, tmp_path, where, said):
    trackers = f"trackers=[{{name: broken, where: {where}}}, notes]"
    with pytest.warns(UserWarning, match=said):
        run = small_run(tmp_path, trackers)
    assert (run / "result.json").is_file()
    others = [note for note in told if note[0] == ""]
    assert [note[1] for note in others] == ["begin", "log", "log", "log", "end"]
    assert all(note[3] for note in others if note[1] == "log")
    assert ("log", "log") not in [note[:2] for note in told]


def test_a_run_that_is_only_measured_is_tracked(told, tmp_path, monkeypatch):
    another_run(monkeypatch, tmp_path, "trackers=notes", "train.iterations=0")
    assert [note[1] for note in told] == ["begin", "log", "end"]


def test_it_changes_neither_the_run_nor_its_name(told, tmp_path):
    run = small_run(tmp_path)
    plain = run.rename(tmp_path / run.name)
    tracked = small_run(tmp_path, "trackers=[notes, csv]")
    assert plain.name == tracked.name
    a, b = (RunFolder(run).load_checkpoint() for run in (plain, tracked))
    assert all(a["embedder"][key].equal(b["embedder"][key]) for key in a["embedder"])
    with (tracked / "metrics.csv").open() as file:
        assert [row["iteration"] for row in csv.DictReader(file)] == ["1", "2"]


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("csv", [{"name": "csv", "file": "metrics.csv"}]),
        ("{name: csv, file: a.csv}", [{"name": "csv", "file": "a.csv"}]),
        ("[csv, {name: csv, file: a.csv}]", [{"name": "csv", "file": "metrics.csv"}, 2]),
        ("[]", []),
    ],
)
def test_one_or_several(written, means, tmp_path):
    config = load("ice_glyphs", [f"trackers={written}"])
    found = [tracker.model_dump() for tracker in config.trackers]
    assert found == [{"name": "csv", "file": "a.csv"} if one == 2 else one for one in means]
    (tmp_path / "a.yaml").write_text(f"extends: ice_glyphs\ntrackers: {written}\n")
    assert load(tmp_path / "a.yaml").trackers == config.trackers
    (tmp_path / "b.yaml").write_text(dump(config))
    assert load(tmp_path / "b.yaml").trackers == config.trackers
    assert config.digest() == load("ice_glyphs").digest()


def test_an_item_of_a_file_is_changed_on_the_command_line(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: ice_glyphs\ntrackers: [csv, tensorboard]\n")
    (_, board) = load(tmp_path / "a.yaml", ["trackers.1.folder=elsewhere"]).trackers
    assert board.arguments == {"folder": "elsewhere"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("cvs", "trackers.0.name: there is no tracker named 'cvs'; did you mean csv?"),
        ("ice", "there is no tracker named 'ice', but a loss"),
        ("[csv, {name: csv, fil: x}]", "trackers.1.fil: unknown argument of csv"),
        ("{name: csv, run_folder: x}", "trackers.0.run_folder: the run sets it; leave it out"),
        ("[3]", "trackers.0: must be a name, or a map with a name and arguments, not 3"),
        ("3", "trackers=3: must be a name, a map with a name and arguments, or a list of them"),
        ("{nam: csv}", "must be a name, a map with a name and arguments, or a list of them"),
        ("[{file: a.csv}]", "trackers.0.name: missing"),
    ],
)
def test_wrong_ones_are_refused(written, said):
    with pytest.raises(UserError) as error:
        load("ice_glyphs", [f"trackers={written}"])
    assert said in str(error.value)


def test_what_has_no_methods_is_refused_before_training(told, tmp_path):
    zoo.register("trackers", "empty")(type("Empty", (), {}))
    with pytest.raises(UserError, match="empty: it has no method begin; a tracker has begin, log"):
        small_run(tmp_path, "trackers=empty")
    assert not list((tmp_path / "runs").glob("*/checkpoint.pt"))


def test_its_words_are_not_part_of_the_result(told, tmp_path, capsys):
    class Loud(Notes):
        def log(self, iteration, values):
            sys.stdout.write("loud")

    zoo.register("trackers", "loud")(Loud)
    small_run(tmp_path, "trackers=loud")
    said = capsys.readouterr()
    assert "loud" in said.err
    assert "loud" not in said.out


def test_other_processes_import_the_modules_of_trackers(told):
    config = load("ice_glyphs", ["trackers=[notes, csv]"])
    assert runner._registering(config) == [Notes.__module__]
    assert plugins_of(config) == {}
