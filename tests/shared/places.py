"""Paths: the checkout, and data beside it that not every machine has."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "tests"
DOCS = ROOT / "docs"
SHARED = ROOT.parent / "shared"
BIRDS = SHARED / "data" / "birds"
PAPER = SHARED / "paper" / "tables.yaml"
WEIGHTS = SHARED / "weights" / "mobilenet_v2_features.pth"
