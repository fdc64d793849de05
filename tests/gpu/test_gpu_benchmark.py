"""benchmarks/gpu.py and tools/gpu_acceptance.py, rehearsed where there may be no GPU."""

import json
import subprocess
import sys

import pytest
import torch
from places import ROOT

BENCHMARK = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]


def said_by(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_benchmark_is_rehearsed_and_leaves_no_result(tmp_path):
    results = ROOT / "results" / "benchmarks"
    before = {path.name: path.stat().st_mtime_ns for path in results.iterdir()}
    path = tmp_path / "report.json"
    status, said, errors = said_by(*BENCHMARK, "--device", "cpu", "--small", "--json", path)
    assert status == 0, errors
    assert {path.name: path.stat().st_mtime_ns for path in results.iterdir()} == before
    report = json.loads(path.read_text())
    for found in report["training"].values():
        assert all(speed > 0 for speed in found["images_per_second"].values())
        assert 0 <= found["share_waiting_for_data"] < 1
    for found in report["recall"]:
        assert found["to_bare_product"].keys() == {"zoo", "bare product", "faiss k=1001"}
    rows = report["table3"]
    assert all(
        row["hours"] * 3600 == pytest.approx(sum(row["seconds"].values())) for row in rows.values()
    )
    assert rows["pretrained_cub"]["iterations"] == 0 < rows["ice_lmh_cub"]["seconds_of_a_step"]
    assert rows["npair_mc_sop"]["embedded_for_a_batch"] > 0
    assert "npair_mc_sop" in said


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
def test_without_a_gpu_nothing_is_measured():
    status, _, errors = said_by(*BENCHMARK)
    assert (status, "device=cuda: this machine has 0 GPUs" in errors) == (2, True)
    status, _, errors = said_by(*BENCHMARK, "--device", "cpu")
    assert (status, "give --device cpu --small" in errors) == (2, True)
    status, _, errors = said_by(sys.executable, "tools/gpu_acceptance.py")
    assert (status, "no GPU here" in errors) == (1, True)


def test_a_file_is_named_by_its_card(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from _measure import slug

    assert slug("NVIDIA H200") == "h200"
    assert slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert slug("NVIDIA H200 MIG 1g.18gb") == "h200-mig-1g-18gb"


def test_outcomes_of_tests_are_counted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import gpu_acceptance

    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "@pytest.fixture\ndef broken(): assert 0\n"
        "def test_broken(broken): pass\n"
        "@pytest.mark.skip(reason='one GPU')\ndef test_two(): pass\n"
    )
    report = tmp_path / "junit.xml"
    said_by(sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", tmp_path)
    found = gpu_acceptance.outcomes(report)
    assert found.pop("seconds") > 0
    assert found == {
        "passed": ["test_good"],
        "failed": ["test_bad", "test_broken"],
        "skipped": {"test_two": "one GPU"},
    }
