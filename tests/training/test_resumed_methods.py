"""Methods that look at the data or remember images: a stopped run ends like one that was not."""

from __future__ import annotations

import pytest
import torch

from zoo import runner
from zoo.config import load
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]

SMALL = (
    "model.backbone.width=4",
    "model.embedding_size=16",
    "train.iterations=7",
    "train.checkpoint_every=2",
    "train.log_every=1",
    "device=cpu",
)
METHODS = {
    "slots": ["loss={name: scalable_nca, memory_size: null}"],
    "queue": ["loss={name: scalable_nca, memory_size: 50}"],
    "memory": ["loss={name: cross_batch_memory, loss: ice, memory_size: 70, momentum: 0.2}"],
    "tree": ["loss=htl", "sampler={name: anchor_neighbours, classes: 8, per_class: 4}"],
    "clusters": [
        "loss={name: divide_conquer, loss: margin, every: 1}",
        "model.slices=[4, 12]",
        "sampler={name: grouped, classes: 8, per_class: 4}",
    ],
    "nearest": ["loss=triplet_semihard", "sampler={name: smart_mining, anchors: 10}"],
    "signatures": ["loss=ice", "sampler={name: schem, classes: 8, per_class: 4, anchors: 2}"],
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_ends_bit_for_bit_the_same(method, tmp_path, monkeypatch):
    settings = [*SMALL, *METHODS[method]]
    if not any(setting.startswith("sampler") for setting in settings):
        settings.append("sampler={name: m_per_class, classes: 8, per_class: 4}")
    batches = loop.training_batches

    def stop(*arguments, **options):
        for batch in batches(*arguments, **options):
            yield batch
            if batch.iteration == 3:
                raise KeyboardInterrupt

    def run(folder):
        config = load("ice_glyphs", [*settings, f"output={tmp_path / folder}"])
        result = runner.run(config, reporter=Reporter(quiet=True))
        return RunFolder(tmp_path / folder / result["run"]).load_checkpoint()

    whole = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", stop)
        with pytest.raises(KeyboardInterrupt):
            run("parts")
    resumed = run("parts")
    for part in ("embedder", "loss", "sampler"):
        torch.testing.assert_close(resumed[part], whole[part], rtol=0, atol=0)
