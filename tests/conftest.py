"""What holds for all tests."""

from __future__ import annotations

import os
import sys

import pytest

os.environ.pop("COLUMNS", None)  # tables are as wide as without a terminal, wherever tests run

# Workers that stand beside each other share the cores: with threads of their own each, they would
# wait for one another. Set before torch is imported, so that commands that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs the command: (status, stdout, stderr)."""
    from zoo import progress
    from zoo.cli import main

    monkeypatch.setattr(progress, "_EVERY", 1e9)  # a busy machine would tell how far it is

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["zoo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return run
