"""A third-party distribution, built and installed, is found by the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "strange-losses"
version = "0.3"
[project.entry-points."zoo.losses"]
strange = "strange_losses:StrangeLoss"
hollow = "strange_losses:NotThere"
ice2 = "strange_losses.gone:Loss"
[tool.setuptools]
py-modules = ["strange_losses"]
"""
MODULE = '''
import torch


class StrangeLoss(torch.nn.Module):
    """Pull everything to the origin."""

    paper = "Stranger 2026, On Nothing"

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        return self.weight * embeddings.pow(2).mean()
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the distribution into a folder of its own; return what runs zoo with it in sight."""
    pytest.importorskip("setuptools")
    source = tmp_path_factory.mktemp("strange")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "strange_losses.py").write_text(MODULE)
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=300)

    def zoo(*arguments, cwd=None):
        environment = {**os.environ, "PYTHONPATH": str(target), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", "zoo", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
            check=False,
        )

    return zoo


@pytest.mark.slow
def test_list_shows_a_plugin_and_marks_the_broken_ones(installed):
    done = installed("list")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "Pull everything to the origin." in lines["strange"]
    assert "Stranger 2026" in lines["strange"]
    assert "strange-losses 0.3" in lines["strange"]
    assert "broken: strange_losses does not define NotThere" in lines["hollow"]
    assert "broken: there is no module strange_losses.gone" in lines["ice2"]
    assert "broken" not in lines["ice"]


def test_the_table_of_losses_tells_what_a_plugin_says_of_itself(installed):
    done = installed("list", "losses")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert lines["strange"].split() == ["strange", "Stranger", "2026", "strange-losses", "0.3"]
    assert "broken: strange_losses does not define NotThere" in lines["hollow"]
    ice = lines["ice"].split()
    assert ice[:7] == ["ice", "Wang", "et", "al.", "2019", "31", "pass"]
    assert ice[7:] == ["m_per_class", "N²"]
    assert "needed" in lines["proxy_nca"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_glyphs")
def test_show_and_run_a_plugin(installed, tmp_path):
    done = installed("show", "losses", "strange")
    assert "weight" in done.stdout
    settings = ["loss.name=strange", "loss.weight=0.5", "train.iterations=2", "device=cpu"]
    done = installed("run", "ice_glyphs", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "strange" in done.stdout


@pytest.mark.slow
def test_a_broken_plugin_fails_only_when_used(installed, tmp_path):
    done = installed("run", "ice_glyphs", "loss.name=hollow", cwd=tmp_path)
    assert done.returncode == 2
    assert "command line: loss.name" in done.stderr
    assert "strange-losses 0.3 is broken" in done.stderr
    assert "Traceback" not in done.stderr
