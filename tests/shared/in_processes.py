"""What the tests of several processes let each of them do; started by zoo.parallel.launch."""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import zoo.checks
from zoo import runner
from zoo.base import Preprocess
from zoo.data.pipeline import Batch
from zoo.errors import UserError
from zoo.evaluation import shards
from zoo.evaluation.at_r import at_r
from zoo.evaluation.measures import measure
from zoo.evaluation.recall import ranks as ranks_of
from zoo.network.embedder import Embedder
from zoo.parallel.launch import launch
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.training.step import Trainer


def call(processes, function, *arguments):
    """Call a function of this module in several processes; return what the first returns."""
    return launch(processes, function, *arguments, reporter=Reporter(quiet=True))[0]


def part(items, ranks, cuts=None):
    """Return this process's part of some items, by default an equal share."""
    if cuts is None:
        return items[ranks.share(len(items))]
    return items[cuts[ranks.rank] : cuts[ranks.rank + 1]]


def with_fewer(function, arguments, ranks, reporter):
    """Call a function in all processes, and in all but the last; return both results by size."""
    fewer = dist.new_group(list(range(ranks.size - 1)))
    found = {ranks.size: function(*arguments[ranks.size], ranks, reporter)}
    if ranks.rank < ranks.size - 1:
        found[ranks.size - 1] = function(*arguments[ranks.size - 1], Ranks(fewer), reporter)
    return found


def lose_the_last(ranks, reporter):
    """Kill the last process while the others compute, and hear of it only by being stopped."""
    ranks.wait()
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def evaluate(cases, piece, ranks, reporter):
    """Return ranks, scores at R and NMI of each case, as found by all processes together."""
    shards._PIECE = piece
    found = []
    for case in cases:
        mine = [part(case[k], ranks, case.get("cuts")) for k in ("embeddings", "labels")]
        gallery = {k: part(case[k], ranks) for k in ("gallery", "gallery_labels") if k in case}
        of = {"group": ranks.group, "block": case.get("block"), **gallery}
        measures = None if gallery else measure(["nmi", "map_at_r"], *mine, group=ranks.group)
        found.append((ranks_of(*mine, **of), at_r(*mine, **of), measures and measures.values))
    return found


def evaluate_wrongly(cases, ranks, reporter):
    """Return, for each case, what every process is told about what it gave."""
    found = []
    for case in cases:
        told = [None] * ranks.size
        try:
            names = case.pop("measures", None)
            items = case["of"][ranks.rank]
            if names:
                measure(names, *items, group=ranks.group)
            else:
                gallery = dict(zip(("gallery", "gallery_labels"), items[2:], strict=False))
                ranks_of(*items[:2], **gallery, group=ranks.group)
            said = "nothing"
        except UserError as error:
            said = str(error)
        dist.all_gather_object(told, said, ranks.group)
        found.append(told)
    return found


class Flat(nn.Module):
    """A backbone whose features are the pixels, with batch normalisation or without."""

    feature_dims = (12,)
    preprocess = Preprocess(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))

    def __init__(self, normalised=False):
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1)
        self.normal = nn.BatchNorm2d(3) if normalised else nn.Identity()

    def forward(self, images):
        return (self.normal(self.mix(images)).tanh().flatten(1),)


class Step(NamedTuple):
    """A step of training, whose gradients are compared."""

    loss: str
    miner: str | None = None
    double: bool = False
    normalised: bool = False
    images: int = 25
    settings: tuple = ()


def step_of(step, ranks, reporter=None):
    """Return the gradients of network and loss after a step, and the state of both."""
    from zoo import config
    from zoo.training.batchnorm import synchronise

    torch.manual_seed(0)
    size = zoo.checks.batches.DIMENSIONS
    checked = config.load("ice_glyphs", ["optimizer={name: sgd, lr: 0.1}", *step.settings])
    embedder = Embedder(Flat(step.normalised), size)
    if not ranks.alone:
        synchronise(embedder, ranks, torch.device("cpu"), allowed=True)
    if step.double:
        embedder.double()
    loss = zoo.checks.Subject(step.loss).build()
    loss = loss.double() if step.double else loss
    miner = None if step.miner is None else zoo.build("miners", step.miner)
    trainer = Trainer(checked, embedder, loss, miner, "fp32", ranks)
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(step.images) % 5
    images = torch.randint(256, (step.images, 3, 2, 2), generator=generator, dtype=torch.uint8)
    mine = ranks.share(step.images)
    trainer.step(Batch(0, list(range(step.images)), {}, mine, images[mine], labels))
    both = {"network": embedder, "loss": loss}
    gradients = {
        f"{what}.{name}": parameter.grad
        for what, module in both.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    state = {
        f"{what}.{name}": tensor
        for what, module in both.items()
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)  # not what a get_extra_state returns
    }
    return gradients, state


def steps_of(steps, ranks, reporter):
    """Return the outcome of each step, or the message of its error; all processes agree."""
    outcomes = []
    for step in steps:
        gradients, state = step_of(step, ranks)
        first = [tensor.clone() for tensor in state.values()]
        ranks.copy_first(first)
        same = all(torch.equal(a, b) for a, b in zip(first, state.values(), strict=True))
        outcomes.append((gradients, state, not any(ranks.any(not same))))
    return outcomes


def runs_of(configs, ranks, reporter):
    """Do several runs, one after the other; return their results."""
    return [dict(runner._of_process(one, (), False, True, ranks, reporter)) for one in configs]
