"""Plans on a Ray cluster of three nodes, all on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray_cluster
from plan_runs import LONG, command, settings, wait_for

from zoo.plans import planning

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray"),
]
RUNS = int(os.environ.get("ZOO_TEST_RUNS", "3"))  # of a plan


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a cluster; return the folder in which it is asked for something."""
    folder = tmp_path_factory.mktemp("ray")
    script = [sys.executable, ray_cluster.__file__, str(folder), "3"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(script, stdout=log, stderr=log) as process,
    ):
        wait_for(lambda: (folder / "address").exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield folder
        (folder / "end").touch()


@pytest.fixture
def plan(photographs, cluster, tmp_path, monkeypatch):
    """Return what makes a plan for the cluster: its settings and the folders of its runs."""
    file = tmp_path / "engines.yaml"
    file.write_text(f"on: ray\nray: {{address: '{(cluster / 'address').read_text()}'}}\n")
    monkeypatch.setenv("ZOO_ENGINES", str(file))

    def make(iterations):
        train = f"train={{iterations: {iterations}, log_every: 1}}"
        given = settings(photographs, tmp_path / "runs", train)
        seeds = ",".join(map(str, range(RUNS)))
        jobs = planning.make(["ice_glyphs"], given, [], seeds).jobs
        return [*given, "--seeds", seeds], [job.folder for job in jobs]

    return make


def test_ctrl_c_saves_the_runs(plan):
    given, folders = plan(5000)
    with command(*given) as process:
        wait_for(lambda: len(folders[0].metrics()) > 20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG)
    assert process.returncode == 1
    assert "saved at iteration" in said
    assert f"{RUNS} of {RUNS} runs are not finished" in said
    assert folders[0].reached() > 20


def test_a_node_that_is_removed_loses_no_run(plan, cluster):
    given, folders = plan(400)
    with command(*given) as process:
        wait_for(lambda: sum(bool(folder.metrics()) for folder in folders) > min(RUNS - 1, 2))
        (cluster / "remove").touch()
        _, said = process.communicate(timeout=5 * LONG)
    assert process.returncode == 0, said
    assert "was lost" in said
    for folder in folders:
        assert folder.result()["recall"]
        assert [line["iteration"] for line in folder.metrics()] == list(range(1, 401))


def test_what_no_node_has_room_for_is_refused(plan, tmp_path):
    file = Path(os.environ["ZOO_ENGINES"])
    file.write_text(file.read_text().replace("ray: {", "ray: {cpus: 64, "))
    given, _ = plan(10)
    with command(*given) as process:
        said = process.communicate(timeout=LONG)[1]
    assert process.returncode == 2
    assert "engine ray: no node of the cluster has CPU 64 for a run of 1 process; lower" in said


def test_where_there_is_no_cluster_it_says_so(tmp_path, monkeypatch, photographs):
    monkeypatch.setenv("ZOO_ENGINES", str(tmp_path / "engines.yaml"))
    (tmp_path / "engines.yaml").write_text("ray: {address: '127.0.0.1:1'}\n")
    given = settings(photographs, tmp_path / "runs", "train={iterations: 2}")
    with command(*given, "--on", "ray") as process:
        said = process.communicate(timeout=LONG)[1]
    assert process.returncode == 2
    assert "engine ray: no cluster at 127.0.0.1:1" in said
    assert "Traceback" not in said
