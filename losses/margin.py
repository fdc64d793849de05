"""Margin loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._require import require_not_negative, require_positive
from ._shared import Loss, masks, safe_sqrt, unit, unit_distances


class MarginLoss(Loss):
    """Keep positives within a learned boundary and negatives outside, each by a margin.

    With D the Euclidean distances of the L2-normalised embeddings, over the triplets (a, p, n)::

        L = 1/A sum [margin + D_ap - beta]+ + [margin + beta - D_an]+  + nu beta

    where A counts the hinges that are above 0. Use it with its miner, as the paper does:
    ``miner: distance_weighted``. Without a miner it uses all triplets; as each hinge depends on one
    pair, every positive pair counts as often as its anchor has negatives, and the reverse, which
    takes O(N²). pytorch-metric-learning's MarginLoss gives the same value from a list of all
    triplets. Mined pairs stand for the triplets that they form.

    Differs from the paper in:
        * there is one beta; the paper adds one per class and per image.
        * nu. The authors' code divides this term, too, by A: it is nu / A times the sum of the
          betas of all triplets, where nu is 0 by default.

    Args:
        margin: alpha of the paper; 0.2.
        beta: the boundary, or where it starts; 1.2 in the paper.
        learn_beta: whether beta is learned, as in the paper.
        nu: weight of the last term, which exists only if beta is learned, see above.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives has no triplets, and gives 0 unless nu is above 0. A
        triplet counts as often as it was mined; mined pairs count as often as they form triplets.

    Reference:
        Wu, Manmatha, Smola, Krähenbühl. Sampling Matters in Deep Embedding Learning. ICCV 2017,
        arXiv:1706.07567, section 4.2.
    """

    paper: ClassVar[str] = "Wu et al. 2017, Sampling Matters in Deep Embedding Learning"
    related = "distance_weighted, contrastive"
    cost = "N²"
    sampler = "m_per_class"
    kind = "triplet"

    def __init__(
        self, margin: float = 0.2, beta: float = 1.2, learn_beta: bool = True, nu: float = 0.0
    ) -> None:
        super().__init__()
        require_not_negative(margin=margin, nu=nu)
        require_positive(beta=beta)
        if nu and not learn_beta:
            raise UserError(f"nu must be 0 without learn_beta, not {nu}")
        self.margin = margin
        self.nu = nu
        self.beta = nn.Parameter(torch.tensor(float(beta)), requires_grad=learn_beta)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean of the hinges above 0, each counted as often as a triplet has it."""
        times = _times(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        f = unit(embeddings)
        distance = safe_sqrt(unit_distances(f, f if ref_emb is embeddings else unit(ref_emb)))
        beyond = distance - self.beta.to(distance.dtype)
        total, active = distance.new_zeros(2)
        for often, signed in zip(times, (beyond, -beyond), strict=True):
            hinge = (self.margin + signed).clamp_min(0)
            total = total + (often * hinge).sum()
            active = active + (often * (hinge > 0)).sum()
        value: Tensor = total / active.clamp_min(1) + self.nu * self.beta
        return value


def _times(
    embeddings: Tensor,
    labels: Tensor,
    indices_tuple: tuple[Tensor, ...] | None,
    ref_emb: Tensor,
    ref_labels: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return in how many triplets each pair is the positive pair, and the negative one; (N, M)."""
    pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
    positive, negative = pairs.times(embeddings.dtype)
    if indices_tuple is not None and len(indices_tuple) == 3:
        return positive, negative
    return positive * negative.sum(1, keepdim=True), negative * positive.sum(1, keepdim=True)
