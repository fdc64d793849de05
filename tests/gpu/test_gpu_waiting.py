"""In the training loop, the host waits for a GPU only where it logs.

On a machine without a GPU, the steps are rehearsed on the meta device, whose tensors have no
numbers to read.
"""

import functools
from contextlib import nullcontext

import pytest
import torch
from on_devices import GPU, META, HostWaits, needs_gpu, no_waiting, without_numbers

import zoo
from zoo import config, registry
from zoo.data.pipeline import training_batches
from zoo.errors import UserError
from zoo.training.experiment import assemble
from zoo.training.step import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]

NETWORK = "model={backbone: {name: convnet, width: 8}, embedding_size: 16}"
LEVELS = "model={backbone: {name: bn_inception, weights: null, levels: LMH}, embedding_size: 8}"
WAITING = {
    "struct_clust": "counts the classes of a batch",
    "spectral_clust": "its decomposition looks at a status",
    "am_softmax": "PML picks the cosine of each image's class by a mask",
    "cosface": "as am_softmax",
    "proxy_anchor": "PML counts the classes of a batch",
    "fastap": "PML lists the pairs",
    "npair_mc": "PML lists the pairs",
}
"""Losses that make the host wait, and why."""
ARGUMENTS = {"struct_clust": {"gamma": 10}}
LOSSES = [name for name in zoo.names("losses") if not name.startswith("pml.")]


@functools.cache
def experiment_on(device, *settings, precision="fp32"):
    """Return an experiment on a device, and some batches."""
    kind = "cpu" if device == META else device
    given = [f"device={kind}", f"train.precision={precision}", *settings]
    experiment = assemble(config.load("ice_glyphs", given))
    batches = training_batches(
        experiment.train,
        experiment.config.images,
        experiment.sampler,
        seed=0,
        start=0,
        stop=4,
        device=device,
    )
    experiment.embedder.to(device)
    return experiment, list(batches)


def take_steps(device, free, *settings, name="ice", precision="fp32", **arguments):
    """Take some steps; the host may wait in the first ``free``, as libraries choose algorithms."""
    experiment, batches = experiment_on(device, *(settings or [NETWORK]), precision=precision)
    embedder = experiment.embedder
    classes, images = len(experiment.train.class_names), len(experiment.train)
    subject = zoo.checks.Subject(name, arguments)
    spaces = getattr(subject.target, "spaces", None)
    runtime = {
        "num_classes": classes,
        "num_images": images,
        "space": spaces and zoo.build("spaces", spaces[0]),
    }
    losses = [
        registry.assemble(
            "losses",
            name,
            subject.arguments,
            {**runtime, "embedding_size": size, "level_sizes": [size // 2] * 2},
        ).to(device)
        for size in embedder.level_sizes
    ]
    criterion = losses[0] if len(losses) == 1 else torch.nn.ModuleList(losses)
    trainer = Trainer(experiment.config, embedder, criterion, None, experiment.precision)
    for batch in batches:
        with no_waiting(device) if batch.iteration >= free else nullcontext():
            trainer.step(batch)
    return trainer


@without_numbers
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss not in WAITING])
def test_a_step_waits_for_nothing(device, loss):
    if device == META and loss == "metrix":
        pytest.skip("PyTorch draws no numbers of a Beta distribution on the meta device")
    trainer = take_steps(device, 2, name=loss, **ARGUMENTS.get(loss, {}))
    if device == GPU:
        trainer.check()
        trainer.check_weights()


@without_numbers
@pytest.mark.parametrize("loss", WAITING)
def test_others_are_known(device, loss):
    with pytest.raises((UserError, HostWaits), match=r"(?i)meta|synchroniz|wait"):
        take_steps(device, 0, name=loss, **ARGUMENTS.get(loss, {}))


@without_numbers
@pytest.mark.parametrize(
    "settings",
    [
        ["train.clip_norm=1.0", "schedule.warmup=2"],
        ["train.chunk_size=8", f"{NETWORK[:-1]}, freeze: batchnorm}}"],
        ["optimizer={name: sgd, lr: 0.1}", "train.channels_last=true"],
        [LEVELS],
    ],
    ids=["clipping", "chunks", "sgd", "levels"],
)
def test_nor_does_it_with_other_settings(device, settings):
    network = [] if any(one.startswith("model=") for one in settings) else [NETWORK]
    take_steps(device, 2, *settings, *network)


@needs_gpu
def test_nor_in_bf16():
    """In fp16, torch's scaler of gradients reads whether one has overflowed, at each step."""
    take_steps(GPU, 2, precision="bf16")


@without_numbers
def test_reading_a_number_is_an_error(device):
    """The block can fail: on each way to wait."""
    x = torch.ones(3, device=device)
    for wait in (
        lambda: x.sum().item(),
        lambda: x[x > 0],
        lambda: torch.tensor([1.0], device=device),
        lambda: x.new_tensor([1.0]),
        lambda: torch.ones(3).to(device),
        lambda: x.copy_(torch.ones(3)),
        lambda: x.nonzero(),
    ):
        with pytest.raises((RuntimeError, NotImplementedError, HostWaits)), no_waiting(device):
            wait()
