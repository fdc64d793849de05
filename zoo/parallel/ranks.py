"""Which process of a run this is, its share of the work, and what the processes exchange.

All processes of a run execute the same program. Where they hold different parts of something, the
first ones have one item more if the number of items cannot be divided evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.errors import FAILURES, MachineError, UserError

_T = TypeVar("_T")

_BUCKET = 1 << 23  # numbers that are added at a time: 32 MB in float32


class LostError(MachineError):
    """Another process of the run ended without a result."""


def started_by_torch() -> bool:
    """Whether torchrun, or this project's own use of it, started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


class Ranks:
    """The processes of a run, seen from one of them. Without a group, it is the only one.

    Args:
        group: of ``torch.distributed``; of it, the CPU and the device of the run need a backend.

    Attributes:
        group: the group.
        rank: the number of this process, from 0.
        size: how many there are.
        device: on which they exchange numbers of which the host needs the value.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        only_gpus = group is not None and dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda" if only_gpus else "cpu")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    def peer(self, rank: int) -> int:
        """Return the number that torch.distributed has for one of the processes."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def counts(self, length: int) -> list[int]:
        """Return how many of ``length`` items each process has."""
        return [length // self.size + (rank < length % self.size) for rank in range(self.size)]

    def share(self, length: int) -> slice:
        """Return which of ``length`` items this process has."""
        ends = [0, *accumulate(self.counts(length))]
        return slice(ends[self.rank], ends[self.rank + 1])

    def gather_counts(self, length: int) -> list[int]:
        """Return the lengths that the processes gave."""
        mine = torch.tensor([length], device=self.device)
        counts: list[int] = self.gather(mine, [1] * self.size).tolist()
        return counts

    def gather_lengths(self, length: float) -> list[float]:
        """Return the numbers that the processes gave."""
        mine = torch.tensor([length], dtype=torch.float64, device=self.device)
        lengths: list[float] = self.gather(mine, [1] * self.size).tolist()
        return lengths

    def gather(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all processes, in their order; each has ``counts[rank]`` of them.

        The gradient of a row reaches the process that has it. It is taken from that process's own
        backward pass and not added up: all of them compute the same loss of the same rows.
        """
        return mine if self.alone else _Gather.apply(mine, self.group, list(counts), False)

    def gather_parts(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """Do the same where each process computes a part of the loss: gradients are added up."""
        return mine if self.alone else _Gather.apply(mine, self.group, list(counts), True)

    def gather_labels(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the labels of all processes; backends cannot send all types of integers."""
        if mine.dtype == torch.uint64:
            return self.gather(mine.view(torch.int64), counts).view(torch.uint64)
        return mine if self.alone else self.gather(mine.long(), counts)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place."""
        if self.alone:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with talking():
                dist.all_reduce(flat, group=self.group)
            for tensor, part in zip(
                bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True
            ):
                tensor.copy_(part.view(tensor.shape))

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set in any process."""
        if self.alone:
            return list(flags)
        numbers = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        with talking():
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        return [bool(number) for number in numbers.tolist()]

    def from_first(self, call: Callable[[], _T]) -> _T:
        """Return in all processes what the first returns, or raise what it raises."""
        if self.alone:
            return call()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = call()
            except FAILURES as error:
                outcome[1] = error
        with talking():
            dist.broadcast_object_list(outcome, self.peer(0), self.group)
        if outcome[1] is not None:
            raise outcome[1]
        value: _T = outcome[0]
        return value

    def together(self, check: Callable[[], _T], of: Callable[[_T], str]) -> _T:
        """Return what a check returns here, if it succeeds in all processes.

        ``of`` returns, in words, what of it must be alike in all processes.

        Raises:
            UserError: in all processes at once: that of the first in which it fails, or what is not
                alike.
        """
        if self.alone:
            return check()
        mine: list[Any] = [None, None, None]  # the value, what must be alike, the problem
        try:
            mine[0] = check()
            mine[1] = of(mine[0])
        except UserError as error:
            mine[2] = str(error)
        found: list[Any] = [None] * self.size
        with talking():
            dist.all_gather_object(found, mine[1:], self.group)
        for rank, (_, problem) in enumerate(found):
            if problem is not None:
                raise UserError(f"process {rank + 1} of {self.size}: {problem}")
        for rank, (kind, _) in enumerate(found):
            if kind != found[0][0]:
                raise UserError(
                    f"processes have items of different kinds: {found[0][0]} in process 1, {kind} "
                    f"in process {rank + 1}"
                )
        value: _T = mine[0]
        return value

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process, in place."""
        if not self.alone:
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                with talking():
                    dist.broadcast(whole, self.peer(0), self.group)
                tensor.detach().copy_(whole)

    def wait(self) -> None:
        """Return when all processes are here."""
        self.any(False)

    @contextmanager
    def own_randomness(self, *numbers: int) -> Iterator[None]:
        """Within the block, draw from a generator of this process, seeded by the numbers.

        After it, the state of torch's generators is what it was, and so the same in all processes.
        """
        if self.alone:
            yield
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(hash((*numbers, self.rank)) % 2**63)
            yield


class _Gather(torch.autograd.Function):
    """Rows of all processes; the backward pass returns the gradient of this one's."""

    @staticmethod
    def forward(
        ctx: Any, mine: Tensor, group: dist.ProcessGroup, counts: list[int], parts: bool
    ) -> Tensor:
        ctx.group, ctx.counts, ctx.parts = group, counts, parts
        padded = mine.new_zeros(max(counts), *mine.shape[1:])
        padded[: len(mine)] = mine
        everything = [torch.empty_like(padded) for _ in counts]
        with talking():
            dist.all_gather(everything, padded, group=group)
        return torch.cat([rows[:n] for rows, n in zip(everything, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.parts:
            grad = grad.clone(memory_format=torch.contiguous_format)
            with talking():
                dist.all_reduce(grad, group=ctx.group)
        return torch.split(grad, ctx.counts)[dist.get_rank(ctx.group)], None, None, None


@contextmanager
def talking() -> Iterator[None]:
    """Report that another process is gone as one kind of error, whatever the backend says."""
    try:
        yield
    except RuntimeError as error:
        raise LostError(f"another process of the run was lost ({error})") from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one type in lists of limited size."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        bucket: list[Tensor] = []
        for tensor in tensors:
            if tensor.dtype == dtype:
                bucket.append(tensor)
                if sum(t.numel() for t in bucket) >= _BUCKET:
                    yield bucket
                    bucket = []
        if bucket:
            yield bucket
