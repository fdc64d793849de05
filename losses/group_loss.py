"""The Group Loss: class probabilities of a batch that agree with its similarities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._layers import linear
from ._require import require_not_negative, require_positive
from ._shared import Loss, unit

_NEVER = -1e30  # the logarithm of a probability of 0


class GroupLoss(Loss):
    """Classify each image, and again after similar images have exchanged their opinions.

    A linear layer gives logits z = W x + b of the embeddings x. With S_ij the correlation of the
    numbers of x_i and x_j, or 0 if it is negative, and T the temperature, the probabilities are
    refined in some iterations of replicator dynamics::

        P(0) = softmax(z / T), and 1 for the label of an anchor
        P(t+1)_ic is proportional to P(t)_ic sum_j S_ij P(t)_jc
        L = mean of -log P(last)_iy + mean of -log softmax(z)_iy

    The ``anchors`` of a class are that many of its images in the batch, drawn at random. Their
    refined probability stays 1. The refinement is computed in logarithms, so that no probability
    vanishes.

    Differs from the paper in:
        * the draw. Here it is at random in each call; the authors' code takes the first of a
          shuffled batch.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        iterations: of the refinement; 1 in the authors' code. With 0 both terms classify alone.
        anchors: of each class; 2 in the authors' code for CUB-200-2011, of 9 images.
        temperature: T; 24 in the authors' code for CUB-200-2011, 79 for CARS196 and 54 for
            Stanford Online Products.
        weight: of the first term; 1 in the authors' code.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé. The Group Loss for Deep Metric Learning.
        ECCV 2020, arXiv:1912.00385, section 3.
    """

    paper: ClassVar[str] = "Elezi et al. 2020, The Group Loss for Deep Metric Learning"
    kind = "classifier"
    cost = "N² C"
    sampler = "m_per_class"
    gallery = False
    mined = False
    normalises = False
    random = True
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_permutation": "the anchors are drawn at random, by their places in the batch"
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        iterations: int = 1,
        anchors: int = 2,
        temperature: float = 24.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        for name, number in {"iterations": iterations, "anchors": anchors}.items():
            if number < 0:
                raise UserError(f"{name} must be at least 0, not {number}")
        require_positive(temperature=temperature)
        require_not_negative(weight=weight)
        self.num_classes = num_classes
        self.iterations = iterations
        self.anchors = anchors
        self.temperature = temperature
        self.weight = weight
        self.classifier = nn.Linear(embedding_size, num_classes)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropies of the refined and of the plain probabilities."""
        check_classes(labels, self.num_classes)
        targets = labels.long()
        logits = self.get_logits(embeddings)
        logs = F.log_softmax(logits / self.temperature, dim=1)
        label = F.one_hot(targets, self.num_classes) > 0
        is_anchor = _draw(targets, self.anchors)[:, None]
        logs = torch.where(is_anchor, torch.where(label, 0, _NEVER), logs)
        similarity = F.relu(_correlation(embeddings))
        for _ in range(self.iterations):
            support = (similarity @ logs.exp()).clamp_min(torch.finfo(logs.dtype).tiny)
            logs = F.log_softmax(logs + support.log(), dim=1)
        return self.weight * F.nll_loss(logs, targets) + F.cross_entropy(logits, targets)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes."""
        return linear(self.classifier, embeddings)


def _correlation(x: Tensor) -> Tensor:
    """Return Pearson's correlations (N, N) of the rows."""
    f = unit(x - x.mean(1, keepdim=True))
    return f @ f.T


def _draw(labels: Tensor, number: int) -> Tensor:
    """Return which images (N,) are drawn: ``number`` of each class, or all if there are fewer."""
    lot = torch.rand(len(labels), dtype=torch.float64, device=labels.device)
    before = (labels[:, None] == labels) & (lot < lot[:, None])
    return before.sum(1) < number
