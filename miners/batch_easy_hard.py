"""Easy positives with hard or semi-hard negatives."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from zoo.errors import UserError

from ._shared import Indices, Miner, Pairs, cosines


class BatchEasyHardMiner(Miner):
    """Take for each anchor its nearest positive, and the nearest negative beyond that.

    With S the cosines, p is the positive of largest S_ap, and n the negative of largest S_an
    among those with S_an < S_ap ("semihard") or among all ("hard"). A class may then have several
    modes: an image needs to be near only one other of its class.

    An anchor without such a positive or negative gives no triplet. Ties are broken arbitrarily.

    Args:
        negatives: "semihard", which the paper finds to train better, or "hard".

    Shape:
        embeddings (N, d), labels (N,), gallery (M, d); returns (anchors, positives, negatives).

    Reference:
        Xuan, Stylianou, Pless. Improved Embeddings with Easy Positive Triplet Mining. WACV 2020,
        arXiv:1904.04370.
    """

    paper: ClassVar[str] = "Xuan et al. 2020, Improved Embeddings with Easy Positive Triplet Mining"

    def __init__(self, negatives: Literal["semihard", "hard"] = "semihard") -> None:
        super().__init__()
        if negatives not in ("semihard", "hard"):
            raise UserError(f"negatives must be 'semihard' or 'hard', not {negatives!r}")
        self.negatives = negatives

    def pick(self, pairs: Pairs) -> Indices:
        """Return a triplet for each anchor."""
        s = cosines(pairs)
        easiest = s.masked_fill(~pairs.positive, -torch.inf).max(1)
        negative = pairs.negative
        if self.negatives == "semihard":
            negative = negative & (s < easiest.values[:, None])
        nearest = s.masked_fill(~negative, -torch.inf).argmax(1)
        (a,) = (pairs.positive.any(1) & negative.any(1)).nonzero(as_tuple=True)
        return a, easiest.indices[a], nearest[a]
