"""The distribution in examples/: built, installed, checked and run, as CONTRIBUTING says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.usefixtures("few_glyphs")

EXAMPLE = ROOT / "examples" / "cosine-contrastive"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build and install it into a folder of its own; return what runs zoo with it in sight."""
    pytest.importorskip("setuptools")
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for path in EXAMPLE.iterdir():
        if path.is_file():  # no build folder in the checkout
            (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=300)

    def zoo(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "zoo", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(target), "COLUMNS": "200"},
            cwd=source,
            check=False,
        )

    return zoo


@pytest.mark.slow
def test_it_passes_the_checks(installed):
    done = installed("check", "cosine_contrastive")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"cosine_contrastive: \d+ passed", done.stdout)
    assert "failed" not in done.stdout


@pytest.mark.slow
def test_a_class_of_a_file_here_can_be_checked_before_it_is_installed(installed):
    name = "cosine_contrastive:CosineContrastiveLoss"
    done = installed("check", name, "margin=0.3", "--only", "check_permutation")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_it_trains(installed):
    settings = ["loss.name=cosine_contrastive", "train.iterations=2", "device=cpu"]
    done = installed("run", "ice_glyphs", *settings)
    assert done.returncode == 0, done.stderr
    assert "cosine_contrastive" in done.stdout


@pytest.mark.slow
def test_it_is_listed_with_what_it_says_of_itself(installed):
    done = installed("list", "losses")
    rows = done.stdout.splitlines()
    (line,) = [row for row in rows if row.startswith("cosine_contrastive")]
    heading = max(i for i in range(rows.index(line)) if rows[i].startswith("name ")) - 1
    assert rows[heading].strip() == "pairs of images"
    assert "Hadsell et al. 2006" in line
    assert line.split()[5] == "N²"
    assert "cosine-contrastive 0.1" in line


def test_it_is_as_short_as_promised():
    code = (EXAMPLE / "cosine_contrastive.py").read_text("utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
