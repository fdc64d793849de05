"""Batches larger than memory: in chunks, every loss has the gradients of the whole batch."""

from __future__ import annotations

import pytest
import torch
from in_processes import Step, step_of

import zoo
from zoo import config
from zoo.checks.memory import PeakMemory
from zoo.data.pipeline import Batch
from zoo.parallel.ranks import Ranks
from zoo.training.embedder import Embedder
from zoo.training.step import Trainer

EVERY = zoo.names("losses")
OF_PML = ("pml.NTXentLoss", "pml.TripletMarginLoss", "pml.ArcFaceLoss", "pml.ProxyAnchorLoss")
AT_ONCE = ("ice", "proxy_nca", "cross_batch_memory")  # in the fast tests too
NAMES = [
    name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow)
    for name in (*EVERY, *OF_PML)
]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_in_chunks_is_the_step_of_the_whole_batch(name):
    """Gradients and states of network and loss, for 25 images in chunks of 7, the last of 4."""
    whole, in_chunks = (
        step_of(Step(name, double=True, settings=settings), Ranks())
        for settings in ((), ("train.chunk_size=7",))
    )
    assert any(gradient.any() for gradient in whole[0].values())
    for of_whole, of_chunks in zip(whole, in_chunks, strict=True):
        assert of_whole.keys() == of_chunks.keys()
        for key, wanted in of_whole.items():
            torch.testing.assert_close(of_chunks[key], wanted, atol=1e-12, rtol=1e-9)


def test_a_miner_sees_the_whole_batch():
    whole, in_chunks = (
        step_of(Step("contrastive", "batch_hard", double=True, settings=settings), Ranks())
        for settings in ((), ("train.chunk_size=4",))
    )
    for key, wanted in whole[0].items():
        torch.testing.assert_close(in_chunks[0][key], wanted, atol=1e-12, rtol=1e-9)


def peak(images, chunk):
    """Return the bytes alive at once in a step."""
    checked = config.load(
        "ice_glyphs",
        [f"train.chunk_size={chunk}", "model.freeze=batchnorm", "optimizer={name: sgd, lr: 0.1}"],
    )
    embedder = Embedder(zoo.build("backbones", "convnet", width=4), 8, freeze="batchnorm")
    trainer = Trainer(checked, embedder, zoo.build("losses", "ice"), None, "fp32")
    labels = torch.arange(images) // 4
    pixels = torch.zeros(images, 1, 32, 32, dtype=torch.uint8)
    batch = Batch(0, list(range(images)), {}, slice(0, images), pixels, labels)
    with PeakMemory() as memory:
        trainer.step(batch)
    return memory.peak


def test_memory_does_not_grow_with_the_batch_but_with_the_chunk():
    """Four times the images: whole, they take four times the memory; in chunks, hardly more."""
    assert peak(64, "null") > 3.5 * peak(16, "null")
    assert peak(64, 4) < 1.5 * peak(16, 4)
    assert peak(64, 4) < peak(64, "null") / 6
