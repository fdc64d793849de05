"""Each tracker, read back with the package that it writes for."""

from __future__ import annotations

import csv
import json
import math
import os
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from places import ROOT

import zoo
from zoo import UserError, checks
from zoo.checks import Part

SETTINGS = {"loss": {"name": "ice", "scale": 64.0}, "seed": 0, "model": {"slices": None}}


def begun(name, folder, iteration=0, **arguments):
    given = {"run_folder": folder, "run_name": folder.name, "settings": SETTINGS}
    tracker = zoo.registry.assemble("trackers", name, arguments, given)
    tracker.begin(iteration)
    return tracker


def stopped_and_resumed(name, folder, **arguments):
    """Track 1, 2, 50 and 60, stop, and go on from 50 with 60 and 70."""
    first = begun(name, folder, **arguments)
    for iteration in (1, 2, 50, 60):
        first.log(iteration, {"loss": 1 / iteration, "lr": 0.5})
    first.end(finished=False)
    second = begun(name, folder, 50, **arguments)
    for iteration in (60, 70):
        second.log(iteration, {"loss": 10 / iteration})
    second.log(70, {"recall_at_1": 0.75})
    second.end(finished=True)


LOSSES = {1: 1.0, 2: 0.5, 50: 0.02, 60: 10 / 60, 70: 10 / 70}


@checks.parametrize_with_checks(["csv"], kind="trackers")
def test_csv(component, check):
    check(component)


def test_csv_has_a_row_for_each_iteration(tmp_path):
    stopped_and_resumed("csv", tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["iteration", "loss", "lr", "recall_at_1"]
    assert {int(r["iteration"]): float(r["loss"]) for r in rows} == LOSSES
    assert [r["lr"] for r in rows] == ["0.5", "0.5", "0.5", "", ""]
    assert [r["recall_at_1"] for r in rows] == ["", "", "", "", "0.75"]


def test_csv_elsewhere_and_numbers_that_are_none(tmp_path):
    path = tmp_path / "a" / "b.csv"
    tracker = begun("csv", tmp_path / "run", file=str(path))
    tracker.log(1, {"loss": math.nan, "lr": math.inf})
    assert path.read_text() == "iteration,loss,lr\n1,nan,inf\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tensorboard_s_reader_sees_one_curve(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped_and_resumed("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found == pytest.approx(LOSSES)
    assert len(events.Scalars("loss")) == len(LOSSES)
    assert [event.value for event in events.Scalars("recall_at_1")] == [0.75]
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"scale": 64.0' in text
    assert checks.run("tensorboard", kind="trackers").ok


@pytest.mark.slow
def test_tensorboard_forgets_an_earlier_try(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for value in (3.0, 4.0):
        tracker = begun("tensorboard", tmp_path / "run")
        tracker.log(1, {"loss": value})
        tracker.end(finished=True)
        time.sleep(1.1)  # the reader takes files in the order of their seconds
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == [4.0]


@pytest.mark.slow
def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    assert checks.run("wandb", {"mode": "offline"}, kind="trackers").ok
    stopped_and_resumed("wandb", tmp_path / "run", mode="offline")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert files[0].name == files[1].name  # two parts of one run
    assert [loss for _, loss in _logged(files[0])] == [1.0, 0.5, 0.02, 1 / 60]
    assert _logged(files[1]) == [(60, 10 / 60), (70, 10 / 70)]


def _logged(path):
    """Return (iteration, loss) of each line of a file of wandb."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        items = record.history.item
        row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
        if "loss" in row:
            found.append((row["iteration"], row["loss"]))
    return found


def _records(data):
    """Yield the records of a log in LevelDB's format, behind the 7 bytes that wandb begins with."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.fixture
def mlflow_server(tmp_path):
    """The address of a server on loopback."""
    pytest.importorskip("mlflow")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'store.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--backend-store-uri", store, "--workers", "1"]
    with (tmp_path / "server.txt").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    uri = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{uri}/health", server)
        yield uri
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(url, server):
    for _ in range(600):
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            assert server.poll() is None, "the server has ended"
            time.sleep(0.2)
    raise AssertionError("the server does not answer")


@pytest.mark.slow
def test_mlflow_s_server_has_one_run(mlflow_server, tmp_path):
    from mlflow import MlflowClient

    stopped_and_resumed("mlflow", tmp_path / "run", uri=mlflow_server, experiment="mine")
    assert checks.run("mlflow", {"uri": mlflow_server}, kind="trackers").ok
    client = MlflowClient(mlflow_server)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params == {
        "loss.name": "ice",
        "loss.scale": "64.0",
        "seed": "0",
        "model.slices": "null",
    }
    history = client.get_metric_history(run.info.run_id, "loss")
    assert {metric.step: metric.value for metric in history} == pytest.approx(LOSSES)
    assert run.data.metrics["recall_at_1"] == 0.75


@pytest.mark.slow
def test_trackio_keeps_one_run(tmp_path):
    """In a process of its own: trackio reads where to keep runs when it is imported."""
    pytest.importorskip("trackio")
    code = (
        "from pathlib import Path; import sys; sys.path[:0] = ['tests/trackers', 'tests/shared'];"
        "from test_trackers import *; import trackio;"
        "assert checks.run('trackio', kind='trackers').ok;"
        "stopped_and_resumed('trackio', Path('run'), project='mine');"
        "from trackio.sqlite_storage import SQLiteStorage as S;"
        "print('FOUND', [(r['step'], r.get('loss')) for r in S.get_logs('mine', 'run')])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "FOUND" in said
    assert str(LOSSES[70]) in said


@pytest.mark.parametrize("name", ["mlflow", "trackio", "wandb"])
def test_a_package_that_is_absent(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"^{name} is not installed; pip install {name}$"):
        begun(name, tmp_path / "run")


def test_impossible_arguments(tmp_path):
    with pytest.raises(UserError, match="mode: must be one of online, offline, not 'on'"):
        begun("wandb", tmp_path / "run", mode="on")
    with pytest.raises(UserError, match="did you mean file"):
        Part("csv", "trackers", {"fil": "x.csv"})
