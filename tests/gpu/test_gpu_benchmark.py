"""benchmarks/gpu.py and tools/gpu_acceptance.py, rehearsed where there may be no GPU."""

import importlib
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


@pytest.fixture
def scripts(monkeypatch):
    """Let the scripts be imported."""
    for folder in ("tools", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("gpu", [], "device=cuda: this machine has 0 GPUs"),
        ("gpu", ["--device", "cpu"], "give --device cpu --small"),
        ("gpu_acceptance", [], "no GPU here"),
    ],
)
def test_without_a_gpu_nothing_is_measured(scripts, monkeypatch, capsys, script, arguments, said):
    main = importlib.import_module(script).main
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code
    assert said in capsys.readouterr().err + str(end.value.code)


def test_all_rows_of_table_3_are_measured(scripts):
    rows = importlib.import_module("_table3").rows()
    assert len(rows) == 12 * 3
    assert {"pretrained_cub", "ice_lmh_sop", "struct_clust_cars"} <= set(rows)


def test_a_file_is_named_by_its_card(scripts):
    slug = importlib.import_module("_measure").slug
    assert slug("NVIDIA H200") == "h200"
    assert slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert slug("NVIDIA H200 MIG 1g.18gb") == "h200-mig-1g-18gb"


def test_outcomes_of_tests_are_counted(scripts, tmp_path):
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
    found = importlib.import_module("gpu_acceptance").outcomes(report)
    assert found.pop("seconds") > 0
    assert found == {
        "passed": ["test_good"],
        "failed": ["test_bad", "test_broken"],
        "skipped": {"test_two": "one GPU"},
    }
