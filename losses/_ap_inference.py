"""The ranking that maximises a score plus or minus its AP loss, for structured prediction.

A ranking of the positives and negatives of an anchor has the score F, the mean over its pairs of a
positive p and a negative n of ``s_p - s_n``, with the sign turned where n is above p. AP does not
tell images of one kind apart, and F is largest if they are sorted. So a ranking is the number n_i
of negatives above the i-th positive, for each i, ``n_1 <= n_2 <= ...``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._ranking import most_positives
from ._shared import Masks

_BLOCK_ELEMENTS = 1 << 25  # anchors x positives x gallery: 128 MB for where each choice came from


class Lists(NamedTuple):
    """The sorted lists of N anchors: at most K positives and at most M negatives of each.

    Attributes:
        positives: (N, K) scores from the highest on, 0 where there are no more.
        valid: (N, K) whether there is an i-th positive.
        negatives: (N, M) scores from the highest on, -inf where there are no more.
        sums: (N, M + 1) of the scores of the first 0, 1, ... negatives.
        positive_count: (N, 1) at least 1.
        negative_count: (N, 1) 0 if there are none.
    """

    positives: Tensor
    valid: Tensor
    negatives: Tensor
    sums: Tensor
    positive_count: Tensor
    negative_count: Tensor

    @classmethod
    def of(cls, scores: Tensor, pairs: Masks) -> Lists:
        """Sort the scores (N, M) of the positives and of the negatives."""
        places = torch.arange(most_positives(pairs.positive), device=scores.device)
        valid = places < pairs.positive.sum(1, keepdim=True)
        positives = torch.where(pairs.positive, scores, -torch.inf).sort(1, descending=True).values
        positives = torch.where(valid, positives[:, : len(places)], 0)
        negatives = torch.where(pairs.negative, scores, -torch.inf).sort(1, descending=True).values
        negative_count = pairs.negative.sum(1, keepdim=True)
        listed = torch.arange(scores.shape[1], device=scores.device) < negative_count
        sums = torch.where(listed, negatives, 0).cumsum(1)
        sums = torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
        positive_count = valid.sum(1, keepdim=True).clamp_min(1)
        return cls(positives, valid, negatives, sums, positive_count, negative_count)

    def score(self, above: Tensor) -> Tensor:
        """Return F (N,) of rankings, differentiable with respect to the scores.

        Args:
            above: (N, K) the number of negatives above each positive.
        """
        total = self.sums[:, -1:]
        signed = (self.negative_count - 2 * above) * self.positives
        pairs = signed - total + 2 * self.sums.gather(1, above)
        count = (self.positive_count * self.negative_count.clamp_min(1)).squeeze(1)
        return torch.where(self.valid, pairs, 0).sum(1) / count

    def loss(self, above: Tensor) -> Tensor:
        """Return 1 - AP (N,) of rankings; without positives it is 0."""
        place = torch.arange(1, above.shape[1] + 1, device=above.device)
        missed = above.to(self.sums.dtype) / (place + above)
        return torch.where(self.valid, missed, 0).sum(1) / self.positive_count.squeeze(1)

    @torch.no_grad()
    def sorted_by_score(self) -> Tensor:
        """Return the numbers (N, K) of the ranking by the scores, which maximises F."""
        # Both from the lowest on, as searchsorted needs it
        above = torch.searchsorted(-self.negatives, -self.positives)
        return above.clamp_max(self.negative_count)

    @torch.no_grad()
    def maximise(self, weight: float) -> Tensor:
        """Return the numbers (N, K) of the ranking that maximises F + weight (1 - AP)."""
        rows = max(1, _BLOCK_ELEMENTS // self.sums.shape[1] // self.positives.shape[1])
        parts = zip(*(torch.split(x, rows) for x in self), strict=True)
        return torch.cat([Lists(*part)._maximised(weight) for part in parts])

    def _maximised(self, weight: float) -> Tensor:
        """Choose the n_i by dynamic programming over i.

        With g_i(n) what the i-th positive adds if n negatives are above it, the best of the first i
        with n_i = n is ``V_i(n) = g_i(n) + max over m <= n of V_{i-1}(m)``.
        """
        n = torch.arange(self.sums.shape[1], device=self.sums.device).to(self.sums.dtype)
        listed = self._listed()
        best = torch.where(listed, 0, -torch.inf).to(self.sums.dtype)
        came_from = []
        for i in range(self.positives.shape[1]):
            best, index = best.cummax(1)
            came_from.append(index.int())
            in_f = (self.negative_count - 2 * n) * self.positives[:, i : i + 1] + 2 * self.sums
            in_f = in_f / self.negative_count.clamp_min(1)
            added = (in_f + weight * n / (i + 1 + n)) / self.positive_count
            best = best + torch.where(self.valid[:, i : i + 1], added, 0)
            best = torch.where(listed, best, -torch.inf)
        chosen = [best.argmax(1, keepdim=True)]
        for index in reversed(came_from[1:]):
            chosen.append(index.gather(1, chosen[-1]).long())
        return torch.cat(chosen[::-1], 1)

    def _listed(self) -> Tensor:
        """Return (N, M + 1) for 0, 1, ... negatives whether there are so many."""
        return torch.arange(self.sums.shape[1], device=self.sums.device) <= self.negative_count
