"""A run of any method that was stopped ends bit for bit like one that was not."""

from __future__ import annotations

import pytest
import torch

from zoo import runner
from zoo.config import load, shipped
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]

SHORT = ("train.iterations=5", "train.checkpoint_every=2", "train.log_every=1", "device=cpu")
SMALL = {
    "m_per_class": ("classes=8",),
    "shuffle": ("batch_size=32",),
    "hard_class": ("classes=8",),
    "anchor_neighbours": ("classes=8",),
    "grouped": ("classes=8",),
    "smart_mining": ("anchors=10",),
    "schem": ("classes=8", "anchors=2"),
}
"""Settings of each sampler that make batches of about thirty images."""
CONFIGS = [name for name in shipped() if name.endswith("_glyphs") and "/" not in name]
METHODS = {
    **{name.removesuffix("_glyphs"): (name, []) for name in CONFIGS if name != "pretrained_glyphs"},
    "scalable_nca, slots": ("scalable_nca_glyphs", ["loss.memory_size=null"]),
    "scalable_nca, queue": ("scalable_nca_glyphs", ["loss.memory_size=50"]),
    "cross_batch_memory, all": (
        "cross_batch_memory_glyphs",
        ["loss={name: cross_batch_memory, loss: ice, memory_size: 70, momentum: 0.2, start: 0}"],
    ),
    "divide_conquer, margin": (
        "divide_conquer_glyphs",
        ["loss={name: divide_conquer, loss: margin, every: 1}"],
    ),
}


def small(name, settings):
    """Return a shipped config of a method with few iterations and a small network."""
    sampler = load(name).sampler.name
    smaller = [f"sampler.{setting}" for setting in SMALL[sampler]]
    if name == "spectral_clust_glyphs":  # learns from batches that are larger than an embedding
        smaller.append("model.embedding_size=16")
    if load(name).model.backbone.name == "convnet":
        smaller.append("model.backbone.width=4")
    return load(name, [*SHORT, *smaller, *settings])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_ends_bit_for_bit_the_same(method, tmp_path, monkeypatch):
    name, settings = METHODS[method]
    batches = loop.training_batches

    def stop(*arguments, **options):
        for batch in batches(*arguments, **options):
            yield batch
            if batch.iteration == 3:
                raise KeyboardInterrupt

    def run(folder):
        config = small(name, [*settings, f"output={tmp_path / folder}"])
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
