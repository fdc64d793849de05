"""Moderate positives with the hardest negatives."""

from __future__ import annotations

from typing import ClassVar

import torch

from ._shared import Indices, Miner, Pairs, squared_distances


class ModeratePositiveMiner(Miner):
    """Take for each anchor its nearest negative, and the farthest positive that is nearer than it.

    With D the distances on the unit sphere::

        n = argmin D_an         p = argmax {D_ap : D_ap <= D_an}, if there is none argmin D_ap

    The farthest positives of an anchor may be images of another view or pose. To pull these near
    would fold the manifold of its class; the nearest ones teach nothing. A moderate positive is in
    between.

    An anchor without positives or without negatives gives no triplet. Ties are broken arbitrarily.

    Differs from the paper in taking every image of a batch as an anchor. There a batch is drawn for
    one anchor, with positives and negatives of it.

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Shi, Yang, Zhu, Liao, Lei, Zheng, Li. Embedding Deep Metric for Person Re-identification: A
        Study Against Large Variations. ECCV 2016, arXiv:1611.00137.
    """

    paper: ClassVar[str] = (
        "Shi et al. 2016, Embedding Deep Metric for Person Re-identification: A Study Against "
        "Large Variations"
    )

    def pick(self, pairs: Pairs) -> Indices:
        """Return a triplet for each anchor."""
        d = squared_distances(pairs)
        nearest = d.masked_fill(~pairs.negative, torch.inf).min(1)
        moderate = pairs.positive & (d <= nearest.values[:, None])
        farthest = d.masked_fill(~moderate, -torch.inf).argmax(1)
        easiest = d.masked_fill(~pairs.positive, torch.inf).argmin(1)
        p = torch.where(moderate.any(1), farthest, easiest)
        (a,) = (pairs.positive.any(1) & pairs.negative.any(1)).nonzero(as_tuple=True)
        return a, p[a], nearest.indices[a]
