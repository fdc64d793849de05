"""Cross-batch memory (XBM), for any loss that compares a batch with a gallery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._images import ImageLoss
from ._inner import failure, trial_batch
from ._require import require_not_negative
from .contrastive import ContrastiveLoss

_EMPTY, _LEAVES = -1, -2  # in place of the age of a row of the memory


class CrossBatchMemoryLoss(ImageLoss):
    """Compare a batch also with the embeddings of earlier batches, as they were then.

    With x the batch, M the memory and l a loss that takes a gallery, such as the contrastive one::

        L = l(x) + weight l(x; gallery M)

    The memory keeps the last ``memory_size`` embeddings, which are constants; the oldest leave as
    new ones come. If it is known which images a batch has, the memory has each image once, and
    none of this batch: an older embedding of the same image would be a positive that is near
    without learning. It is used as soon as it, with this batch,
    is full.

    A call in training mode stores its batch; after ``eval()`` it only reads.

    ``pml.CrossBatchMemory`` is pytorch-metric-learning's: it gives the loss the pairs of batch and
    memory as mined pairs, so that it takes only losses of pairs, and the memory keeps all copies.

    Differs from the paper in:
        * the memory does not have the batch, whose pairs are those of the first term; in the
          authors' code it has, and pairs of an image with itself are recognised by a cosine of 1.
        * older embeddings of the images of the batch are left out.
        * a memory that is not yet full is not used.
        * ``momentum``, which the paper does not have.

    Args:
        embedding_size: d.
        loss: takes a gallery (``gallery = True``), or is of pytorch-metric-learning; by default
            ``contrastive``, the paper's first choice.
        memory_size: the embeddings that are kept, more than a batch has; 8192 in the authors'
            configuration. At most as many as there are training images.
        weight: of the second term; 1 in the authors' configuration.
        start: calls before the memory is used, as embeddings change fast at first; 2000 in the
            authors' configuration.
        momentum: from 0 to below 1; above 0, the embedding of an image that the memory has already
            is stored as ``momentum old + (1 - momentum) new``.
        miner: picks pairs of batch and memory; by default the loss uses all.
        num_images: of the training data; supplied by the run.

    Shape:
        embeddings (N, d), labels (N,) any integers, image_ids (N,); returns a scalar. What a batch
        with nothing to learn from gives is up to the loss. The memory is its gallery, so that
        another one has no meaning for it. Mined pairs are those of the first term.

    Raises:
        UserError: the loss does not take a gallery, or numbers are out of range.

    Reference:
        Wang, Zhang, Huang, Scott. Cross-Batch Memory for Embedding Learning. CVPR 2020,
        arXiv:1912.06798. Values from the authors' code (research-xbm).
    """

    paper: ClassVar[str] = "Wang et al. 2020, Cross-Batch Memory for Embedding Learning"
    kind = "pair"
    cost = "N² + N memory"
    sampler = "m_per_class"
    check_arguments: ClassVar[Mapping[str, Any]] = {"memory_size": 16}

    def __init__(
        self,
        embedding_size: int,
        loss: nn.Module | None = None,
        memory_size: int = 1024,
        weight: float = 1.0,
        start: int = 0,
        momentum: float = 0.0,
        miner: nn.Module | None = None,
        num_images: int | None = None,
    ) -> None:
        super().__init__()
        if memory_size < 1:
            raise UserError(f"memory_size must be at least 1, not {memory_size}")
        if not 0 <= momentum < 1:
            raise UserError(f"momentum must be from 0 to below 1, not {momentum}")
        require_not_negative(weight=weight, start=start)
        self.loss = ContrastiveLoss() if loss is None else loss
        _check_gallery(self.loss, embedding_size)
        # As the loss says; those of PML, which say nothing, take mined pairs.
        self.mined = getattr(self.loss, "mined", True)  # type: ignore[misc]
        self.normalises = getattr(self.loss, "normalises", False)  # type: ignore[misc]
        self.miner = miner
        self.memory_size = memory_size
        self.weight, self.start, self.momentum = weight, start, momentum
        self.calls = self.stored = 0
        rows = min(memory_size, num_images or memory_size)
        self.memory: Tensor
        self.memory_labels: Tensor
        self.memory_ids: Tensor
        self.age: Tensor
        self.register_buffer("memory", torch.zeros(rows, embedding_size))
        self.register_buffer("memory_labels", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("memory_ids", torch.full((rows,), -1))
        self.register_buffer("age", torch.full((rows,), _EMPTY))

    def check_batch(self, batch_size: int, embedding_size: int) -> None:
        """Refuse a memory that a batch would fill: nothing would remain to compare with.

        Raises:
            UserError: says so.
        """
        rows = len(self.memory)
        if batch_size >= rows:
            less = rows < self.memory_size
            advice = "all there are, so make batches smaller" if less else "make memory_size larger"
            raise UserError(
                f"a memory of {rows} images is not larger than a batch of {batch_size}; {advice}"
            )

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the loss of the batch, and of the batch and the memory; store the batch."""
        if labels is None:
            raise UserError("a memory of batches needs labels, with mined pairs too")
        mined = () if indices_tuple is None else (indices_tuple,)
        total: Tensor = self.loss(embeddings, labels, *mined)
        leave, others = self._rows(len(embeddings))
        is_due = self.calls >= self.start and self.stored >= len(others)
        if is_due and len(others):
            # Indexing copies: the graph keeps what it saw, even if the next batch is stored first.
            seen = (self.memory[others].to(embeddings.dtype), self.memory_labels[others])
            pairs = None if self.miner is None else self.miner(embeddings.detach(), labels, *seen)
            with_memory = self.loss(embeddings, labels, pairs, *seen)
            is_full = (self.age[others] != _EMPTY).all()  # no GPU has to wait to know
            total = total + self.weight * torch.where(is_full, with_memory, 0)
        if self.training:
            self._store(embeddings.detach(), labels.long(), leave)
        return total

    def _rows(self, images: int) -> tuple[Tensor, Tensor]:
        """Return the rows of the memory that give place to the batch, and all others.

        Those with an image of the batch leave first, then empty ones, then the oldest.
        """
        age = self.age
        if self.ids is not None:
            of_batch = (self.memory_ids[:, None] == self.ids).any(1)
            age = age.masked_fill(of_batch, _LEAVES)
        order = age.argsort(stable=True)
        return order[:images], order[images:]

    @torch.no_grad()
    def _store(self, x: Tensor, labels: Tensor, rows: Tensor) -> None:
        x, labels = x[-len(rows) :].to(self.memory.dtype), labels[-len(rows) :]
        age = self.stored + torch.arange(len(rows), device=rows.device)
        new = [x, labels, torch.full_like(labels, -1), age]
        if self.ids is not None:
            ids = self.ids[-len(rows) :]
            known = ids[:, None] == self.memory_ids
            before = self.memory[known.to(torch.uint8).argmax(1)]
            x = x.lerp(before, self.momentum * known.any(1, keepdim=True).to(x.dtype))
            # Copies of an image come last, to the oldest rows, and leave these as they are.
            is_copy = (ids[:, None] == ids).tril(-1).any(1)
            order = is_copy.to(torch.uint8).argsort(stable=True)
            new = [
                torch.where(is_copy[order].view(-1, *[1] * (part.ndim - 1)), old[rows], part[order])
                for part, old in zip((x, labels, ids, age), self._buffers_of_rows(), strict=True)
            ]
        for buffer, part in zip(self._buffers_of_rows(), new, strict=True):
            buffer.index_copy_(0, rows, part)
        self.calls += 1
        self.stored += len(rows)

    def _buffers_of_rows(self) -> tuple[Tensor, ...]:
        return self.memory, self.memory_labels, self.memory_ids, self.age

    def get_extra_state(self) -> dict[str, int]:
        """Return the numbers of calls and of embeddings so far."""
        return {"calls": self.calls, "stored": self.stored}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Continue from a saved state."""
        self.calls, self.stored = int(state["calls"]), int(state["stored"])


def _check_gallery(loss: nn.Module, embedding_size: int) -> None:
    """Refuse a loss that does not take a gallery: it says so, or fails when a copy is tried."""
    name, takes = type(loss).__name__, getattr(loss, "gallery", None)
    if takes is None:
        x, y = trial_batch(embedding_size)
        reason = failure(loss, x[:4], y[:4], None, x[4:], y[4:])
        if reason is not None:
            raise UserError(
                f"a memory needs a loss that takes a gallery; {name}, tried with ref_emb and "
                f"ref_labels, failed: {reason}"
            )
    elif not takes:
        raise UserError(f"a memory needs a loss that takes a gallery; {name} has gallery = False")
