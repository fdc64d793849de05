"""Accept a machine with a GPU: the tests that need one, then the benchmark; takes ten minutes.

    python tools/gpu_acceptance.py

It installs nothing. What it leaves in results/benchmarks is to be committed: the outcomes of
`pytest tests/gpu`, as gpu-<card>-tests.json, and the numbers of `python benchmarks/gpu.py`, as
gpu-<card>.json. It ends with status 1 if a test or the benchmark fails, but runs both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _measure import setting, slug, write  # noqa: E402


def run_tests() -> dict[str, Any]:
    """Run the tests; return their outcomes by name, and how long they took."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/gpu", f"--junitxml={report}"]
        status = subprocess.run(command, cwd=ROOT).returncode
        if not report.is_file():
            return {"status": status, "failed": ["pytest did not start"], "passed": []}
        return {"status": status, **outcomes(report)}


def outcomes(report: Path) -> dict[str, Any]:
    """Return which tests passed, failed, and were skipped, from pytest's XML."""
    found: dict[str, Any] = {"passed": [], "failed": [], "skipped": {}}
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    for case in suite.iter("testcase"):
        name = case.get("name", "")
        skipped = case.find("skipped")
        if skipped is not None:
            found["skipped"][name] = skipped.get("message")
        elif case.find("failure") is not None or case.find("error") is not None:
            found["failed"].append(name)
        else:
            found["passed"].append(name)
    return {"seconds": float(suite.get("time", 0)), **found}


def main() -> None:
    """Run the tests and the benchmark, and write what they found."""
    if not torch.cuda.is_available():
        sys.exit(
            "no GPU here; python benchmarks/gpu.py --device cpu --small rehearses the benchmark"
        )
    tests = run_tests()
    path = ROOT / "results" / "benchmarks" / f"gpu-{slug(torch.cuda.get_device_name())}-tests.json"
    write(path, {**setting(), "gpus": torch.cuda.device_count(), **tests})
    print(json.dumps({key: tests[key] for key in ("status", "failed")}))
    print(f"written: {path}")
    benchmark = subprocess.run([sys.executable, "benchmarks/gpu.py"], cwd=ROOT).returncode
    sys.exit(int(tests["status"] != 0 or benchmark != 0))


if __name__ == "__main__":
    main()
