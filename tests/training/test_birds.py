"""Real photographs through a real pretrained network, where they are at hand."""

from __future__ import annotations

import pytest
from places import SHARED

from zoo import runner
from zoo.config import load
from zoo.progress import Reporter

BIRDS = SHARED / "data" / "birds"
WEIGHTS = SHARED / "weights" / "mobilenet_v2_features.pth"
QUIET = Reporter(quiet=True)

pytestmark = pytest.mark.skipif(
    not (BIRDS.is_dir() and WEIGHTS.is_file()), reason="no photographs or weights at hand"
)


def run(tmp_path, *more):
    settings = [
        f"dataset.root={BIRDS}",
        f"model.backbone.weights={WEIGHTS}",
        f"output={tmp_path}",
        "device=cpu",
        *more,
    ]
    return runner.run(load("ice_folder", settings), reporter=QUIET)


@pytest.mark.slow
def test_the_frozen_network_scores_what_these_weights_score(tmp_path):
    """Any fault in decoding, preprocessing or loading shows: half-loaded weights give 49."""
    result = run(tmp_path, "train.iterations=0", "model.embedding_size=null")
    assert result["dataset"]["images"] == 2474
    assert 100 * result["recall"]["1"] == pytest.approx(73.2, abs=0.15)


@pytest.mark.slow
def test_fine_tuning_runs(tmp_path):
    result = run(tmp_path, "train.iterations=2", "sampler.classes=3", "sampler.per_class=4")
    assert result["recall"]["1"] > 0.5
