"""One step of several processes is the step of one: gradients, statistics, state of the loss."""

import pytest
import torch
from in_processes import Step, call, step_of, steps_of, with_fewer

import zoo
from zoo.parallel.ranks import Ranks

pytestmark = pytest.mark.slow
EVERY = [name for name in zoo.names("losses") if not name.startswith("pml.")]
OF_PML = ("NTXentLoss", "SupConLoss", "ProxyAnchorLoss", "ArcFaceLoss", "SoftTripleLoss")
STEPS = {
    **{name: Step(name) for name in EVERY},
    **{f"{name} in float64": Step(name, double=True) for name in EVERY},
    **{f"pml.{name}": Step(f"pml.{name}", double=True) for name in OF_PML},
    "a miner": Step("triplet_semihard", miner="pml.MultiSimilarityMiner", double=True),
    "a miner that draws": Step("margin", miner="distance_weighted", double=True),
    "batch normalisation": Step("ice", normalised=True, double=True),
    "batch normalisation in float32": Step("contrastive", normalised=True),
    "chunks": Step("ice", double=True, settings=("train.chunk_size=3",)),
    "a limit on the gradient": Step("rll", double=True, settings=("train.clip_norm=1e-3",)),
    "as few images as processes": Step("proxy_nca", double=True, images=3),
}


def together_as_one(tensors, keys):
    """Return tensors as one vector: one that is 0 but for rounding has no error of its own."""
    return torch.cat([tensors[key].double().flatten() for key in keys])


def error(mine, theirs):
    """Return the relative error of one of two maps of tensors."""
    assert mine.keys() == theirs.keys()
    keys = list(theirs)
    expected = together_as_one(theirs, keys)
    return float((together_as_one(mine, keys) - expected).norm() / expected.norm())


def of(what, tensors):
    return {key: tensor for key, tensor in tensors.items() if key.startswith(what)}


def test_the_gradients_are_those_of_one_process():
    """Of all losses, by two processes and by three, which are started once for all."""
    arguments = {n: (list(STEPS.values()),) for n in (2, 3)}
    found = call(3, with_fewer, steps_of, arguments)
    wrong = []
    for number, (name, step) in enumerate(STEPS.items()):
        expected = step_of(step, Ranks())
        for n in (2, 3):
            *outcome, same = found[n][number]
            faults = [*differences(outcome, expected, 1e-12 if step.double else 1e-5)]
            faults += [] if same else ["the processes differ after the step"]
            wrong += [f"{name}, {n} processes: {fault}" for fault in faults]
    assert not wrong


def differences(outcome, expected, limit):
    """Yield what differs in gradients and in state."""
    for what, mine, theirs in zip(("gradient", "state"), outcome, expected, strict=True):
        for part in ("network", "loss"):
            if of(part, theirs) and error(of(part, mine), of(part, theirs)) >= limit:
                yield f"{what} of the {part}, {error(of(part, mine), of(part, theirs)):.2g}"
