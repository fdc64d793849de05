"""One step of several processes is the step of one: gradients, statistics, the loss's own state."""

import pytest
import torch
from in_processes import Step, call, step_of, steps_of

import zoo
from zoo.parallel.ranks import Ranks

pytestmark = pytest.mark.slow
PROCESSES = (2, 3)  # 3 does not divide the batch of 25
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


@pytest.fixture(scope="module", params=PROCESSES)
def together(request):
    names = list(STEPS)
    return dict(zip(names, call(request.param, steps_of, list(STEPS.values())), strict=True))


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


@pytest.mark.parametrize("name", STEPS)
def test_the_gradients_are_those_of_one_process(together, name):
    step = STEPS[name]
    outcome = together[name]
    expected = step_of(step, Ranks())
    limit = 1e-12 if step.double else 1e-5
    for mine, theirs in zip(outcome[:2], expected, strict=True):
        assert mine.keys() == theirs.keys()
        for what in ("network", "loss"):
            if of(what, theirs):
                assert error(of(what, mine), of(what, theirs)) < limit
    assert outcome[2], "the processes differ after the step"
