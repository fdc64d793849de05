"""Bars are for a person who looks on; elsewhere not even a blank line of them is written."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from zoo import progress
from zoo.data import download
from zoo.data import unpack as data_unpack
from zoo.datasets import _images
from zoo.progress import Reporter


def track(reporter):
    assert list(reporter.track("abc", 3, "letters")) == ["a", "b", "c"]


def train(reporter):
    with reporter.training(0, 3) as report:
        report.advance()


def unpack(reporter):
    with data_unpack._bar(reporter) as bar:
        bar.update(bar.add_task("unpacking", total=3, files=""), completed=2)


def fetch(reporter):
    with download._open_meter(reporter, "a file") as meter:
        meter.start(0, 3)
        meter.show(2)


BARS = pytest.mark.parametrize("bar", [track, train, unpack, fetch])


@BARS
@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (False, True), (True, True)])
def test_without_a_reader_nothing_is_written(bar, terminal, quiet):
    file = io.StringIO()
    bar(Reporter(Console(file=file, force_terminal=terminal), quiet=quiet))
    assert file.getvalue() == ""


def test_nor_is_it_where_files_are_looked_at(capfd):
    assert list(_images.show_progress("abc", 3, "looking at files")) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


@BARS
def test_on_a_terminal_there_is_a_bar(bar):
    file = io.StringIO()
    bar(Reporter(Console(file=file, force_terminal=True, width=80)))
    assert "\x1b[" in file.getvalue()


def test_a_slow_training_tells_of_each_iteration_once(monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", -1.0)
    file = io.StringIO()
    with Reporter(Console(file=file, width=80)).training(0, 4) as report:
        for iteration in range(1, 5):
            report.advance()
            if iteration in (1, 4):
                report.show(iteration, loss=0.5)
    said = [line.split("  ") for line in file.getvalue().splitlines()]
    assert [line[0] for line in said] == ["1/4", "2/4", "3/4", "4/4"]
    assert ["loss 0.5000" in line for line in said] == [True, False, False, True]
