"""Plans as jobs of SLURM, of which tests/shared/slurm_standin.py is a stand-in."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter

import pytest
import slurm_standin
from plan_runs import LONG, command, settings, wait_for

from zoo.errors import UserError
from zoo.plans import planning
from zoo.plans.engines import chosen
from zoo.plans.engines.base import Need

pytest.importorskip("submitit")
RUNS = int(os.environ.get("ZOO_TEST_RUNS", "2"))  # of a plan


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Install the stand-in, with a file of resources; return the folder of its state."""
    state = slurm_standin.install(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ZOO_ENGINES", str(tmp_path / "engines.yaml"))
    (tmp_path / "engines.yaml").write_text("slurm: {cpus: 1, time: 10, warning: 60}\n")
    return state


def plan_of(photographs, tmp_path, iterations):
    given = settings(
        photographs, tmp_path / "runs", f"train={{iterations: {iterations}, log_every: 1}}"
    )
    seeds = ",".join(map(str, range(RUNS)))
    return (
        given,
        seeds,
        [job.folder for job in planning.make(["ice_glyphs"], given, [], seeds).jobs],
    )


def over(process):
    """Wait for the end of a command; return what it said on stderr."""
    said = process.communicate(timeout=5 * LONG)
    assert process.returncode == 0, said
    return said[1]


@pytest.mark.slow
def test_a_time_limit_and_a_failing_node_do_not_harm_a_plan(
    photographs, slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    given, seeds, folders = plan_of(photographs, tmp_path, 600)
    with (
        slurm_standin.Daemon(slurm, nodes=2) as daemon,
        command(*given, "--seeds", seeds, "--on", "slurm") as process,
    ):
        wait_for(lambda: len(folders[0].metrics()) > 20)
        daemon.run_out(1)
        wait_for(lambda: any(len(folder.metrics()) > 20 for folder in folders[1:]))
        daemon.fail("node1")
        over(process)
    assert daemon.signalled == [(1, "USR1")]
    jobs = Counter(job for job, _ in daemon.starts)
    assert jobs[1] == 2
    assert jobs.total() == RUNS + 2
    assert len(jobs) == RUNS  # SLURM itself queued again what it stopped
    for folder in folders:
        assert folder.result()["recall"]
        lines = [line["iteration"] for line in folder.metrics()]
        assert lines == list(range(1, 601))


@pytest.mark.slow
def test_jobs_outlive_the_command_and_the_next_one_finds_them(photographs, slurm, tmp_path):
    given, seeds, folders = plan_of(photographs, tmp_path, 400)
    with slurm_standin.Daemon(slurm, nodes=1) as daemon:
        with command(*given, "--seeds", seeds, "--on", "slurm") as process:
            wait_for(lambda: folders[0].metrics())
            process.kill()
        with (
            command(*given, "--seeds", seeds, "--on", "slurm") as mine,
            command(*given, "--seeds", seeds, "--on", "slurm") as other,
        ):
            over(mine)
            over(other)
    assert len(daemon.starts) == RUNS  # none was submitted twice
    assert all(folder.finished for folder in folders)


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_cancels_the_queue(photographs, slurm, tmp_path):
    given, seeds, folders = plan_of(photographs, tmp_path, 3000)
    with slurm_standin.Daemon(slurm, nodes=1) as daemon:
        with command(*given, "--seeds", seeds, "--on", "slurm") as process:
            wait_for(lambda: len(folders[0].metrics()) > 20)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=LONG)[1]
        assert process.returncode == 1
        assert "saved at iteration" in said
        assert f"{RUNS} of {RUNS} runs are not finished" in said
        wait_for(lambda: not any(daemon.nodes.values()))
        time.sleep(0.3)  # a job that was left in the queue would start
        assert len(daemon.starts) == 1
    assert folders[0].reached() > 20


@pytest.mark.slow
def test_a_job_that_is_cancelled_has_failed(photographs, slurm, tmp_path):
    given, _, folders = plan_of(photographs, tmp_path, 3000)
    with slurm_standin.Daemon(slurm, nodes=1), command(*given, "--on", "slurm") as process:
        wait_for(lambda: len(folders[0].metrics()) > 20)
        slurm_standin.scancel(slurm, ["1"])
        said = process.communicate(timeout=LONG)[1]
    assert process.returncode == 1
    assert "its job 1 was cancelled" in said


@pytest.mark.slow
def test_damaged_events_and_a_removed_folder_do_not_end_a_plan(photographs, slurm, tmp_path):
    given, _, folders = plan_of(photographs, tmp_path, 3000)
    (place,) = [tmp_path / "runs" / ".slurm" / folders[0].path.name]
    with slurm_standin.Daemon(slurm, nodes=1), command(*given, "--on", "slurm") as process:
        wait_for(lambda: len(folders[0].metrics()) > 20)
        with (place / "events").open("a") as file:
            file.write("not json\n")
        time.sleep(1)
        assert process.poll() is None
        shutil.rmtree(place)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LONG)[1]
    assert process.returncode == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_third_ctrl_c_waits_for_nobody(photographs, slurm, tmp_path):
    given, _, _ = plan_of(photographs, tmp_path, 100)
    with command(*given, "--on", "slurm") as process:  # nobody starts the job, or cancels it
        wait_for(lambda: (slurm / "1" / "state").exists())
        for _ in range(3):
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LONG)[1]
    assert process.returncode == 1
    assert "which may still be queued" in said


def test_where_there_is_no_slurm_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="this machine has no sbatch; run zoo on a machine"):
        chosen.engine("slurm").open([Need("cpu")])
