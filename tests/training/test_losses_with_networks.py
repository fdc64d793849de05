"""Losses that draw random numbers, remember, or train networks: a stopped run ends the same."""

from __future__ import annotations

import pytest
import torch

from zoo import runner
from zoo.config import load
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training import loop

pytestmark = [pytest.mark.usefixtures("few_glyphs"), pytest.mark.slow]

SMALL = (
    "model.backbone.width=4",
    "model.embedding_size=16",
    "sampler={name: m_per_class, classes: 8, per_class: 4}",
    "train.iterations=6",
    "train.checkpoint_every=2",
    "device=cpu",
)
SLICED = ("model.slices=[4, 12]",)
LOSSES = {
    "a_bier": SLICED,
    "daml": (),
    "dreml": SLICED,
    "dvml": SLICED,
    "hdml": (),
    "matching_net_fce": (),
    "pddm": (),
    "s2sd": ("loss={name: s2sd, targets: [8]}",),
    "tadam_conditioned": (),
}


def run(folder, name):
    settings = (*SMALL, f"loss={name}", *LOSSES[name], f"output={folder}")
    config = load("ice_glyphs", list({text.split("=")[0]: text for text in settings}.values()))
    result = runner.run(config, reporter=Reporter(quiet=True))
    return RunFolder(folder / result["run"]).load_checkpoint()


@pytest.mark.parametrize("name", LOSSES)
def test_a_run_that_was_stopped_ends_bit_for_bit_the_same(name, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", name)
    batches = loop.training_batches

    def stop(*arguments, **options):
        for batch in batches(*arguments, **options):
            yield batch
            if batch.iteration == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", name)
    torch.rand(7)  # random numbers of somebody else
    resumed = run(tmp_path / "stopped", name)
    for part in ("embedder", "loss"):
        torch.testing.assert_close(resumed[part], whole[part], rtol=0, atol=0)
