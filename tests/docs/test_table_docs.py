"""What the page of tables says works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from boards import results_of, write_runs
from places import ROOT

PAGE = (ROOT / "docs" / "tables.md").read_text("utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = results_of("ice_sop") + results_of("ice_cub") + results_of("ablation/scale_sop")
    found += results_of("ablation/scale_glyphs", recall={1: 0.5})
    write_runs(tmp_path / "runs", *found)
    (tmp_path / "results").symlink_to(ROOT / "results")


def test_the_outputs_are_what_is_printed():
    tool = [sys.executable, str(ROOT / "tools" / "make_table_docs.py"), "--check"]
    # Of this environ: readline, which pytest imports, puts a COLUMNS of its own behind its back.
    environ = dict(os.environ)
    done = subprocess.run(tool, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr


def test_the_commands_are_found():
    assert len(COMMANDS) == 14
    assert all(command.startswith("zoo leaderboard") for command in COMMANDS)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_works(line, command):
    arguments = shlex.split(line)[1:]
    status, out, err = command(*arguments)
    assert status == 0, err
    assert "error" not in err
    assert out or Path(arguments[arguments.index("-o") + 1]).is_file()


@pytest.mark.usefixtures("runs")
def test_the_python_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, {})
    assert capsys.readouterr().out.startswith('{\n  "version": 1,')


def test_the_options_are_those_of_the_command():
    from zoo.cli.leaderboard import leaderboard

    known = {name for parameter in leaderboard.params for name in parameter.opts}
    told = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert {name for name in known if name.startswith("--")} == told
