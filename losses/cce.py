"""Categorical cross entropy of a linear classifier."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ._classes import check_classes
from ._shared import Loss


class CCELoss(Loss):
    """Classify the training classes with a linear layer on top of the embedding.

    With W (C, d) and b (C,) learned, and z = W x + b of unnormalised embeddings::

        L = mean of -z_y + log sum_c exp(z_c)

    Only the embedding is kept for retrieval. The ICE paper calls it "fine-tuned with CCE", and sums
    (Eq. 1) where this is a mean.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, log C at the start. A
        gallery and mined pairs have no meaning for it.

    Reference:
        Wang, Kodirov, Hua, Robertson. Instance Cross Entropy for Deep Metric Learning.
        arXiv:1911.09976, section 3.1; the row "Fine-tuned with CCE" of Table 3 is from Law,
        Urtasun, Zemel. Deep Spectral Clustering Learning. ICML 2017.
    """

    paper: ClassVar[str] = "Law et al. 2017, Deep Spectral Clustering Learning (as a baseline)"
    related = "normface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False
    normalises = False

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        self.num_classes = num_classes
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
        """Return the mean cross entropy."""
        check_classes(labels, self.num_classes)
        return F.cross_entropy(self.get_logits(embeddings), labels.long())

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes."""
        weight, bias = (p.to(embeddings.dtype) for p in self.classifier.parameters())
        return F.linear(embeddings, weight, bias)
