"""Multibatch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ._class_means import squared_distances
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean


class MultibatchLoss(AnchorLoss):
    """Separate the distances of positive and negative pairs by a learned threshold.

    With D the squared Euclidean distances of the embeddings, which are not normalised, and y_ij = 1
    for two images of a class, else -1, over all k² - k pairs of the k images of a batch::

        L = mean_ij of [1 - y_ij (theta - D_ij)]+

    Positives should be nearer than theta - 1, negatives farther than theta + 1. The paper shows
    that the variance of the gradient over all pairs falls as 1/k², that over k/2 disjoint pairs as
    1/k. Positive and negative pairs weigh the same, and there are many more negative ones.

    Args:
        theta: the threshold at the start, above 1; it is a parameter, trained with the network. The
            paper's start is not known here.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. Without
        positives it learns from negatives, and the other way round; a batch of one image gives 0.

    Reference:
        Tadmor, Wexler, Rosenwein, Shalev-Shwartz, Shashua. Learning a Metric Embedding for Face
        Recognition using the Multibatch Method. NIPS 2016, arXiv:1605.07270. No code of the
        authors was found, so the form of the hinge is checked against no second source.
    """

    paper: ClassVar[str] = (
        "Tadmor et al. 2016, Learning a Metric Embedding for Face Recognition using the Multibatch "
        "Method"
    )
    related = "contrastive"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    normalises = False

    def __init__(self, theta: float = 2.0) -> None:
        super().__init__()
        require_positive(theta=theta)
        self.theta = nn.Parameter(torch.tensor(float(theta)))

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over all pairs."""
        beyond = squared_distances(anchors, gallery) - self.theta.to(anchors.dtype)
        hinge = torch.where(pairs.positive, 1 + beyond, 1 - beyond).clamp_min(0)
        positive_times, negative_times = pairs.times(hinge.dtype)
        return [Mean.where(pairs.positive | pairs.negative, hinge, positive_times + negative_times)]
