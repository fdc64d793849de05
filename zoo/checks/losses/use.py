"""Checks of use: in a training loop, with a gallery, with a miner."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.checks import batches
from zoo.checks.batches import CLASSES, DIMENSIONS, TrialBatch
from zoo.checks.compare import hold, prefixed, require_finite, require_same
from zoo.checks.memory import PeakMemory
from zoo.checks.outcomes import unless
from zoo.checks.subject import (
    CheckFailedError,
    LossCall,
    NotApplicableError,
    Subject,
    blaming,
    call,
)
from zoo.evaluation.recall import recall_at_k

_MOST_GROWTH = 2.5  # as a power of N: 2 is a matrix of all pairs, 3 is positive pairs x negatives
_STEPS = 200

# ---- in a training loop


def _is_random(subject: Subject) -> str | None:
    """Not applicable to a loss that declares that it draws random numbers, ``random = True``."""
    return "it draws random numbers" if subject.traits.random else None


def check_repeated_steps(subject: Subject) -> None:
    """Three steps with one object work: no graph is kept from the step before."""

    def three_steps_work(batch: TrialBatch) -> None:
        loss = subject.build()
        for number in (1, 2, 3):
            with prefixed(f"in step {number}"):
                _step(subject, loss, batch)

    for batch in batches.general():
        hold(three_steps_work, batch)


def check_state_dict(subject: Subject) -> None:
    """Everything that decides the value is in the state dict, so a resumed run is not changed.

    After three steps the state is loaded into a new loss, which has to give the same result.
    """
    first, batch = batches.general()
    loss = subject.build()
    for number in (1, 2, 3):
        with prefixed(f"in step {number}"):
            _step(subject, loss, first)
    other = subject.build(seed=1)
    with blaming("restoring its state_dict"):
        other.load_state_dict(copy.deepcopy(loss.state_dict()))
    wanted = subject.evaluate(batch, torch.float32, loss)
    got = subject.evaluate(batch, torch.float32, other)
    with prefixed("restored from its state_dict after three steps"):
        require_same(got, wanted)


def check_moves(subject: Subject) -> None:
    """All of its tensors move with it: to another type, to a GPU if there is one.

    A tensor that is a plain attribute is not moved, and not saved either.
    """
    moved = subject.build().double()
    for path, tensor in _plain_tensors(moved):
        raise CheckFailedError(
            f"{path}, a tensor of shape {tuple(tensor.shape)}, does not move with the loss and is "
            "not in its state_dict: make it a buffer or a parameter"
        )
    batch = next(batches.general())
    subject.evaluate(batch, loss=moved)
    if torch.cuda.is_available():
        wanted = subject.evaluate(batch, torch.float32)
        x = batch.x.float().cuda().requires_grad_()
        value = call(subject.build().cuda(), x, batch.y.cuda())
        torch.autograd.backward(value)
        gradient = torch.zeros_like(x) if x.grad is None else x.grad
        got = LossCall(value.detach().cpu().double(), gradient.cpu().double(), {})
        with prefixed("on a GPU"):
            require_same(got, wanted, rtol=1e-4)


@unless(_is_random)
def check_determinism(subject: Subject) -> None:
    """Two calls give the same value, whatever the state of the random numbers."""

    def twice_the_same(batch: TrialBatch) -> None:
        x = batch.x.float()
        a, b = (float(call(subject.build(), x, batch.y, seed=seed).detach()) for seed in (0, 1))
        if a != b and not (math.isnan(a) and math.isnan(b)):
            raise CheckFailedError(f"the same call gives {a:.9g} and {b:.9g}")

    for batch in batches.general():
        hold(twice_the_same, batch)


def check_leaves_inputs(subject: Subject) -> None:
    """Embeddings and labels are not changed in place: the miner and other losses need them too."""

    def untouched(batch: TrialBatch) -> None:
        x, y = batch.x.float(), batch.y.clone()
        call(subject.build(), x, y)
        for name, now, before in (("embeddings", x, batch.x.float()), ("labels", y, batch.y)):
            if now._version or not torch.equal(now, before):
                raise CheckFailedError(f"it writes to the {name}", name)

    for batch in batches.general():
        hold(untouched, batch)


def check_memory(subject: Subject) -> None:
    """Memory grows at most as a matrix of all pairs, N², not with pairs x negatives.

    The peak memory is counted at 64 and at 128 images, four of each class. With N³, 100 MB at 128
    images become 50 GB at a thousand.
    """
    small, large = (_peak(subject, n) for n in (64, 128))
    growth = math.log2(large.peak / max(1, small.peak))
    if growth > _MOST_GROWTH:
        raise CheckFailedError(
            f"128 images take {large.peak / 1e6:.1f} MB and 64 take {small.peak / 1e6:.1f} MB: "
            f"growth as N^{growth:.1f}; the largest tensor is {large.largest}"
        )


def check_learning(subject: Subject) -> None:
    """In 200 steps of Adam a linear map learns an easy problem: lower loss, higher Recall@1.

    There are 24 images of 4 classes; a step sees three of each class. The classes differ in 4 of 12
    inputs; the others are noise.
    """
    images, y = _noisy_images()
    random = batches.generator(11)
    weight = (0.3 * torch.randn(12, DIMENSIONS, generator=random)).requires_grad_()
    loss = subject.build()
    optimizer = torch.optim.Adam([weight, *loss.parameters()], lr=0.02)
    before = recall_at_k(images @ weight, y, [1])[1]
    values = []
    for step in range(_STEPS):
        rows = torch.cat([torch.randperm(6, generator=random)[:3] + 6 * c for c in range(4)])
        optimizer.zero_grad()
        with prefixed(f"in step {step + 1}"):
            value = call(loss, images[rows] @ weight, y[rows], ids=rows)
            values.append(float(value.detach()))
            if not math.isfinite(values[-1]):
                raise CheckFailedError(f"the value is {values[-1]}", "infinite value")
            with blaming("its backward pass"):
                torch.autograd.backward(value)
        optimizer.step()
    start, end = (sum(part) / 10 for part in (values[:10], values[-10:]))
    after = recall_at_k(images @ weight, y, [1])[1]
    seen = f"the loss went from {start:.4g} to {end:.4g}, Recall@1 from {before:.0%} to {after:.0%}"
    if not end < start:
        raise CheckFailedError(f"{seen} in {_STEPS} steps: the loss did not fall", "loss")
    if not after > before + 0.15:
        raise CheckFailedError(f"{seen} in {_STEPS} steps: retrieval is hardly better", "recall")


# ---- galleries and miners


def _takes_no_gallery(subject: Subject) -> str | None:
    """Applicable only to a loss whose ``forward`` takes ``ref_emb``."""
    return None if subject.takes("ref_emb") else "its forward takes no ref_emb"


def _takes_no_pairs(subject: Subject) -> str | None:
    """Applicable only to a loss whose ``forward`` takes ``indices_tuple``."""
    return None if subject.takes("indices_tuple") else "its forward takes no indices_tuple"


@unless(_takes_no_gallery)
def check_gallery(subject: Subject) -> None:
    """A gallery (``ref_emb``) works: of any size, in any order, and its labels matter.

    A loss that declares ``gallery = False`` has to refuse one, not ignore it.
    """
    queries, gallery = next(batches.general()).split()
    if _refuses(subject, subject.traits.gallery, queries, _as_gallery(gallery)):
        return

    def works(batch: TrialBatch) -> None:
        queries, gallery = batch.split()
        for one, other in ((queries, gallery), (gallery, queries)):
            if len(one.y) and len(other.y):
                with prefixed(f"with a gallery of {len(other.y)} for {len(one.y)} images"):
                    wanted = subject.evaluate(one, **_as_gallery(other))
                    require_finite(wanted)
                mirrored = other.rows(torch.arange(len(other.y)).flip(0))
                with prefixed("with the gallery in reverse order"):
                    require_same(subject.evaluate(one, **_as_gallery(mirrored)), wanted)

    for batch in batches.general():
        hold(works, batch)
        queries, gallery = batch.split()
        other = TrialBatch(gallery.x, gallery.y.roll(1))
        a, b = (subject.evaluate(queries, **_as_gallery(g)).value for g in (gallery, other))
        if a == b:
            raise CheckFailedError(
                f"the labels of a gallery do not matter, the value is {float(a):.6g} with other "
                f"labels too; {_remedy('ref_emb and ref_labels', 'gallery')}"
            )


@unless(_takes_no_pairs)
def check_mined(subject: Subject) -> None:
    """Mined pairs and triplets (``indices_tuple``) work, matter, and may be empty.

    If the loss declares that its kind is "pair", all pairs give the same as no miner. A loss that
    declares ``mined = False`` has to refuse mined pairs, not ignore them.
    """
    batch = next(batches.general())
    pairs = {"indices_tuple": _all_pairs(batch.y)}
    if _refuses(subject, subject.traits.mined, batch, pairs):
        return

    def works(batch: TrialBatch) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        for what, indices in {
            "all pairs": _all_pairs(batch.y),
            "all triplets": _all_triplets(batch.y),
            "no pairs": (none,) * 4,
            "no triplets": (none,) * 3,
        }.items():
            with prefixed(f"with {what} mined"):
                result = subject.evaluate(batch, indices_tuple=indices)
                require_finite(result)
                if what == "all pairs" and subject.traits.kind == "pair":
                    require_same(result, subject.evaluate(batch))

    for batch in batches.general():
        hold(works, batch)
        triplets = _all_triplets(batch.y)
        few = tuple(part[-3:] for part in triplets)
        a, b = (subject.evaluate(batch, indices_tuple=t) for t in (triplets, few))
        if a.value == b.value and torch.equal(a.gradient, b.gradient):
            raise CheckFailedError(
                f"the mined triplets do not matter, the value is {a.value:.6g} with others too; "
                f"{_remedy('indices_tuple', 'mined')}"
            )


def _step(subject: Subject, loss: nn.Module, batch: TrialBatch) -> None:
    """Take one training step on a batch."""
    result = subject.evaluate(batch, torch.float32, loss)
    require_finite(result)
    parameters = [p for p in loss.parameters() if p.requires_grad]
    if parameters:
        torch.optim.SGD(parameters, lr=0.1).step()


def _plain_tensors(loss: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that are plain attributes of a loss and not saved, with their paths."""
    state = loss.state_dict()
    extra = [state[key] for key in state if key.rpartition(".")[2] == "_extra_state"]
    saved = {id(tensor) for tensor in _tensors(extra)}
    for path, module in loss.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and id(value) not in saved:
                yield ".".join(filter(None, (path, name))), value


def _tensors(data: Any) -> Iterator[Tensor]:
    """Yield the tensors in plain data."""
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, dict | list | tuple):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _tensors(item)


def _noisy_images() -> tuple[Tensor, Tensor]:
    """Return inputs (24, 12) and their labels."""
    random = batches.generator(10)
    y = torch.arange(4).repeat_interleave(6)
    quiet = torch.eye(4)[y] + 0.1 * torch.randn(24, 4, generator=random)
    return torch.cat([quiet, torch.randn(24, 8, generator=random)], 1), y


def _peak(subject: Subject, n: int) -> PeakMemory:
    """Return the memory that one step on n images takes."""
    x = torch.randn(n, DIMENSIONS, generator=batches.generator(12))
    y = torch.arange(n) // 4
    if subject.traits.own_classes:
        y %= CLASSES
    loss = subject.build()
    memory = PeakMemory()
    with memory:
        subject.evaluate(TrialBatch(x, y), torch.float32, loss)
    return memory


def _as_gallery(batch: TrialBatch) -> dict[str, Any]:
    return {"ref_emb": batch.x.clone(), "ref_labels": batch.y}


def _refuses(
    subject: Subject, meant: bool | None, batch: TrialBatch, more: Mapping[str, Any]
) -> bool:
    """Return whether a loss refuses an argument as it declares.

    Raises:
        CheckFailedError: if it declares that it refuses, and does not.
        NotApplicableError: if it refuses without declaring so.
    """
    try:
        subject.evaluate(batch, **more)
    except CheckFailedError as error:
        if not isinstance(error.__cause__, ValueError) or meant:
            raise
        if meant is None:
            raise NotApplicableError(str(error)) from error
        return True
    if meant is False:
        raise CheckFailedError(
            f"it declares that {next(iter(more))} has no meaning, but takes it; raise a ValueError "
            "if it is not None"
        )
    return False


def _remedy(arguments: str, trait: str) -> str:
    return f"use {arguments}, or declare {trait} = False and raise a ValueError if they are given"


def _all_pairs(y: Tensor) -> tuple[Tensor, ...]:
    same = y[:, None] == y
    positive = same & ~torch.eye(len(y), dtype=torch.bool)
    return (*positive.nonzero().unbind(1), *(~same).nonzero().unbind(1))


def _all_triplets(y: Tensor) -> tuple[Tensor, ...]:
    same = y[:, None] == y
    positive = same & ~torch.eye(len(y), dtype=torch.bool)
    return (positive[:, :, None] & ~same[:, None, :]).nonzero().unbind(1)
