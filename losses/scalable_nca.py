"""Scalable neighbourhood component analysis (SNCA)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._neighbours import neighbour_nll
from ._shared import Loss, unit


class ScalableNCALoss(Loss):
    """Raise the share of the own class among all neighbours, most of which are in a memory.

    With v the L2-normalised embeddings and sigma the temperature, the probability that i takes the
    class of j, and that it takes its own::

        p_ij = exp(v_i . v_j / sigma) / sum_{k != i} exp(v_i . v_k / sigma)
        p_i  = sum_{j : y_j = y_i} p_ij                  L = mean of -log p_i

    The neighbours are the other images of the batch, and the embeddings of earlier batches as they
    were then, which are constants. At the first batch the memory is empty, and the loss is plain
    NCA on the batch. A call in training mode stores its batch; after ``eval()`` it only reads.

    Differs from the paper in:
        * the memory. The paper has a slot for each image of the training data, updated with
          momentum. A loss that is called with embeddings and labels does not know the identity of
          the images, so this one keeps the last ``memory_size`` embeddings, first in, first out.
          The memory may then hold an older embedding of an image of the batch, a positive that is
          near without learning; the paper leaves it out. Keep ``memory_size`` well below the number
          of training images. On the toy problem of ``zoo.checks``, whose batches are all the same
          24 images, Recall@1 ends at 96 to 100 % with a memory of 1, and at 46 to 83 % with one of
          24.
        * the batch. Its images are neighbours too, and receive a gradient as such; in the paper all
          neighbours are constants from the memory.

    Args:
        embedding_size: d.
        memory_size: the embeddings that are kept; d times 4 bytes each, also in checkpoints.
        sigma: the temperature; 0.05 in the paper.

    Shape:
        embeddings (N, d), labels (N,) any integers; returns a scalar. An image without a positive
        in batch and memory is left out; 0 if all are left out or there is only one class. The
        memory is its gallery, so that another gallery and mined pairs have no meaning for it.

    Reference:
        Wu, Efros, Yu. Improving Generalization via Scalable Neighborhood Component Analysis.
        ECCV 2018, arXiv:1808.04699, section 3.
    """

    paper: ClassVar[str] = (
        "Wu et al. 2018, Improving Generalization via Scalable Neighborhood Component Analysis"
    )
    sampler = "m_per_class"
    kind = "list"
    cost = "N² + N memory"
    gallery = False
    mined = False

    def __init__(self, embedding_size: int, memory_size: int = 1024, sigma: float = 0.05) -> None:
        super().__init__()
        if memory_size < 1:
            raise UserError(f"memory_size must be at least 1, not {memory_size}")
        if not 0 < sigma < math.inf:
            raise UserError(f"sigma must be positive, not {sigma}")
        self.memory_size = memory_size
        self.sigma = sigma
        self.memory: Tensor
        self.memory_labels: Tensor
        self.stored: Tensor
        self.register_buffer("memory", torch.zeros(memory_size, embedding_size))
        self.register_buffer("memory_labels", torch.zeros(memory_size, dtype=torch.int64))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))  # in total

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean of -log p_i, and store the batch."""
        f, labels = unit(embeddings), labels.long()
        # A copy: the graph needs the old memory, even if the next batch comes before backward.
        memory = self.memory.to(f.dtype, copy=True)
        logits = torch.cat([f @ f.T, f @ memory.T], 1) / self.sigma
        same = labels[:, None] == torch.cat([labels, self.memory_labels])
        neighbour = torch.ones_like(same)
        neighbour[:, : len(f)].fill_diagonal_(False)
        neighbour[:, len(f) :] = torch.arange(self.memory_size, device=f.device) < self.stored
        if self.training:
            self._store(f.detach(), labels)
        return neighbour_nll(logits, same & neighbour, ~same & neighbour)

    @torch.no_grad()
    def _store(self, f: Tensor, labels: Tensor) -> None:
        f, labels = f[-self.memory_size :], labels[-self.memory_size :]
        places = (self.stored + torch.arange(len(f), device=f.device)) % self.memory_size
        self.memory.index_copy_(0, places, f.to(self.memory.dtype))
        self.memory_labels.index_copy_(0, places, labels)
        self.stored += len(f)
