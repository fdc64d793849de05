"""Training on a GPU: no waiting in the loop, precision, pinned transfers, full memory, two GPUs."""

import math

import numpy as np
import pytest
import torch

import zoo
from zoo import config, runner
from zoo.data.pipeline import training_batches
from zoo.errors import GPU_MEMORY, out_of_memory
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.training.experiment import assemble
from zoo.training.step import Trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.usefixtures("few_glyphs"),
]
GPU = torch.device("cuda")
SMALL = ["model.backbone.width=8", "model.embedding_size=16", "sampler.classes=8"]
# Losses that look at numbers while they choose clusters or classes.
WAITING = {"struct_clust", "spectral_clust", "prototypical", "tadam", "matching_net", "drpr"}
LOSSES = [
    name for name in zoo.names("losses") if not name.startswith("pml.") and name not in WAITING
]


def trainer_of(*settings):
    """Return a trainer on the GPU and its batches."""
    experiment = assemble(config.load("ice_glyphs", [*SMALL, "device=cuda", *settings]))
    trainer = Trainer(
        experiment.config,
        experiment.embedder,
        experiment.loss,
        experiment.miner,
        experiment.precision,
    )
    batches = training_batches(
        experiment.train,
        experiment.config.images,
        experiment.sampler,
        seed=0,
        start=0,
        stop=8,
        device=GPU,
    )
    return trainer, batches


@pytest.fixture
def no_waiting():
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_makes_the_host_wait_for_nothing(no_waiting, loss):
    trainer, batches = trainer_of(f"loss={loss}")
    for batch in batches:
        if batch.iteration == 2:  # libraries have chosen their algorithms
            no_waiting()
        trainer.step(batch)
    torch.cuda.set_sync_debug_mode("default")
    trainer.check()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(precision):
    trainer, batches = trainer_of(f"train.precision={precision}")
    losses = []
    for batch in batches:
        trainer.step(batch)
        losses += trainer.meter.read()[0]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


def test_batches_come_in_pinned_memory():
    _, batches = trainer_of()
    batch = next(batches)
    assert batch.images.is_pinned()
    assert batch.labels.is_pinned()


def test_crops_are_those_of_the_cpu():
    experiment = assemble(config.load("ice_glyphs", [*SMALL, "images={crop: 24, mirror: true}"]))
    both = [
        next(
            training_batches(
                experiment.train,
                experiment.config.images,
                zoo.build(
                    "samplers",
                    "m_per_class",
                    labels=np.asarray(experiment.train.labels),
                    seed=0,
                    classes=4,
                    per_class=2,
                ),
                seed=0,
                start=0,
                stop=1,
                device=device,
            )
        )
        .on(device)[0]
        .cpu()
        for device in (torch.device("cpu"), GPU)
    ]
    assert torch.equal(*both)


def test_full_memory_is_one_message():
    with pytest.raises(torch.cuda.OutOfMemoryError) as full:
        torch.empty(1 << 50, dtype=torch.uint8, device=GPU)
    assert out_of_memory(full.value) == GPU_MEMORY


def run(output, *settings):
    given = [*SMALL, "train.iterations=30", "train.precision=fp32", f"output={output}", *settings]
    result = runner.run("ice_glyphs", given, reporter=Reporter(quiet=True))
    return result, RunFolder(output / result["run"])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_two_gpus_are_as_one(tmp_path):
    """By NCCL, with torch's synchronised batch normalisation."""
    (one, _), (two, _) = (
        run(tmp_path / str(n), "device=cuda", f"train.processes={n}") for n in (1, 2)
    )
    for k, score in one["recall"].items():
        assert abs(two["recall"][k] - score) * one["queries"] <= 0.02 * one["queries"]


def test_a_gpu_ends_near_a_cpu(tmp_path):
    (on_cpu, _), (on_gpu, _) = (run(tmp_path / d, f"device={d}") for d in ("cpu", "cuda"))
    assert on_gpu["recall"]["1"] == pytest.approx(on_cpu["recall"]["1"], abs=0.05)
