"""Scalable neighbourhood component analysis (SNCA)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._images import ImageLoss, mean_of_copies, require_ids
from ._neighbours import neighbour_nll
from ._require import require_positive
from ._shared import unit

_NOTHING, _UNKNOWN = -1, -2  # in place of the id of an image: no embedding, one of any image


class ScalableNCALoss(ImageLoss):
    """Raise the share of the own class among all neighbours, most of which are in a memory.

    With v the L2-normalised embeddings and sigma the temperature, the probability that i takes the
    class of j, and that it takes its own::

        p_ij = exp(v_i . v_j / sigma) / sum_{k != i} exp(v_i . v_k / sigma)
        p_i  = sum_{j : y_j = y_i} p_ij                  L = mean of -log p_i

    The neighbours are constants from a memory. With ``memory_size=None`` it is the paper's: a slot
    for each image of the training data, updated when the image is seen, with momentum t::

        v_slot <- normalised (t v_slot + (1 - t) v)

    An image is not compared with its own slot. One whose slot is still empty, as all are before the
    first epoch, takes part as a neighbour with its present embedding, which then receives a
    gradient as such. So the first batch is plain NCA, and from the second epoch on the loss is the
    paper's. The authors' code trains for 130 epochs and more. With few epochs, slots are too old:
    in 600 iterations on glyphs, fewer than 6 epochs, Recall@1 is 75.4 % with slots and 85.9 % with
    a queue of 256 (seed 0).

    With a number ``memory_size``, the memory is a queue of the last embeddings, first in, first
    out; the other images of the batch are neighbours too, and receive a gradient as such. It needs
    no identities of images. If they are known, older embeddings of an image are left out of its
    neighbours; without them, such a positive is near without learning, and ``memory_size`` should
    stay well below the number of training images.

    A call in training mode stores its batch; after ``eval()`` it only reads.

    Differs from the paper in:
        * the queue, which the paper does not have.
        * the first epoch. The authors' code starts from random slots.
        * the mean. An image without a positive is left out; the authors' code counts it as 0.

    Args:
        embedding_size: d.
        memory_size: the embeddings that are kept; None for one for each training image. Each takes
            d times 4 bytes, also in checkpoints.
        sigma: the temperature; 0.05 in the paper.
        momentum: t, from 0 to below 1; 0.5 in the authors' code, where it rises to 0.8 and 0.9
            (``momentum: {from: 0.5, to: 0.9}``). Has no meaning for a queue.
        num_images: of the training data; supplied by the run.

    Shape:
        embeddings (N, d), labels (N,) any integers, image_ids (N,); returns a scalar. An image
        without a positive is left out; 0 if all are left out or there is only one class. The
        memory is its gallery, so that another gallery and mined pairs have no meaning for it.

    Reference:
        Wu, Efros, Yu. Improving Generalization via Scalable Neighborhood Component Analysis.
        ECCV 2018, arXiv:1808.04699, section 3.
    """

    paper: ClassVar[str] = (
        "Wu et al. 2018, Improving Generalization via Scalable Neighborhood Component Analysis"
    )
    related = "nca"
    sampler = "m_per_class"
    kind = "list"
    cost = "N² + N memory"

    def __init__(
        self,
        embedding_size: int,
        memory_size: int | None = 1024,
        sigma: float = 0.05,
        momentum: float = 0.5,
        num_images: int | None = None,
    ) -> None:
        super().__init__()
        if memory_size is not None and memory_size < 1:
            raise UserError(f"memory_size must be at least 1, not {memory_size}")
        if memory_size is None and num_images is None:
            raise UserError(
                "memory_size=None keeps all images: give num_images, how many there are"
            )
        if not 0 <= momentum < 1:
            raise UserError(f"momentum must be from 0 to below 1, not {momentum}")
        require_positive(sigma=sigma)
        self.has_slots = memory_size is None
        self.memory_size: int = memory_size or num_images or 0
        self.sigma = sigma
        self.momentum = momentum
        self.memory: Tensor
        self.memory_labels: Tensor
        self.memory_ids: Tensor
        self.stored: Tensor
        size = self.memory_size
        self.register_buffer("memory", torch.zeros(size, embedding_size))
        self.register_buffer("memory_labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("memory_ids", torch.full((size,), _NOTHING, dtype=torch.int64))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))  # in total, in a queue

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean of -log p_i, and store the batch."""
        f, labels, ids = unit(embeddings), labels.long(), self.ids
        if self.has_slots:
            ids = require_ids(ids, self.memory_size, "scalable_nca with a slot for each image")
        elif ids is None:
            ids = _UNKNOWN - 1 - torch.arange(len(f), device=f.device)  # unlike all others
        # A copy: the graph needs the old memory, even if the next batch comes before backward.
        memory = self.memory.to(f.dtype, copy=True)
        logits = torch.cat([f @ f.T, f @ memory.T], 1) / self.sigma
        same = labels[:, None] == torch.cat([labels, self.memory_labels])
        neighbour = torch.cat([ids[:, None] != ids, ids[:, None] != self.memory_ids], 1)
        filled = self.memory_ids != _NOTHING
        in_batch = ~filled[ids] if self.has_slots else torch.ones_like(labels, dtype=torch.bool)
        neighbour &= torch.cat([in_batch, filled])
        if self.training:
            (self._update if self.has_slots else self._append)(f.detach(), labels, ids)
        return neighbour_nll(logits, same & neighbour, ~same & neighbour)

    @torch.no_grad()
    def _update(self, f: Tensor, labels: Tensor, ids: Tensor) -> None:
        f = mean_of_copies(f, ids).to(self.memory.dtype)
        seen = (self.memory_ids[ids] != _NOTHING).to(f.dtype)[:, None]
        self._write(ids, unit(f.lerp(self.memory[ids], self.momentum * seen)), labels, ids)

    @torch.no_grad()
    def _append(self, f: Tensor, labels: Tensor, ids: Tensor) -> None:
        f, labels, ids = (part[-self.memory_size :] for part in (f, labels, ids))
        places = (self.stored + torch.arange(len(f), device=f.device)) % self.memory_size
        self._write(places, f.to(self.memory.dtype), labels, ids.clamp_min(_UNKNOWN))
        self.stored += len(f)

    def _write(self, places: Tensor, f: Tensor, labels: Tensor, ids: Tensor) -> None:
        self.memory.index_copy_(0, places, f)
        self.memory_labels.index_copy_(0, places, labels)
        self.memory_ids.index_copy_(0, places, ids)
