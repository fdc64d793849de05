"""Histogram loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from zoo.errors import UserError

from ._shared import Loss, masks, unit, unit_distances


class HistogramLoss(Loss):
    """Lower the probability that a negative pair is more similar than a positive pair.

    With the cosines of the positive and of the negative pairs of the whole batch counted into nodes
    from -1 to 1 by linear interpolation, h+ and h- the two histograms, each of sum 1::

        L = sum_r h-_r sum_{q <= r} h+_q

    A cosine of exactly 1 belongs to the last interval. In pytorch-metric-learning's HistogramLoss
    it starts another interval without a node: an IndexError, or on a GPU an assertion that ends the
    process. Otherwise the two are equal within float32's precision, which PML has for float64 too.

    A pair moves only if there are pairs of the other kind at its cosine: two histograms that do not
    overlap give no gradient, whether they are in the right or in the wrong order.

    Args:
        n_bins: intervals from -1 to 1; 100 as in PML. The paper found that its results hardly
            depend on them, from 50 to 400.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar from 0 to 1. A
        batch without positives or without negatives gives 0. A pair counts as often as it was
        mined.

    Reference:
        Ustinova, Lempitsky. Learning Deep Embeddings with Histogram Loss. NIPS 2016,
        arXiv:1611.00822, section 3.
    """

    paper: ClassVar[str] = "Ustinova & Lempitsky 2016, Learning Deep Embeddings with Histogram Loss"
    related = "fastap"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_large_gaps": "it is constant where the two histograms do not overlap"
    }

    def __init__(self, n_bins: int = 100) -> None:
        super().__init__()
        if n_bins < 1:
            raise UserError(f"n_bins must be at least 1, not {n_bins}")
        self.n_bins = n_bins

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the probability computed from the two histograms."""
        pairs = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        positive, negative = pairs.times(embeddings.dtype)
        f = unit(embeddings)
        squared = unit_distances(f, f if ref_emb is embeddings else unit(ref_emb)).clamp_max(4)
        place = self.n_bins - squared * (self.n_bins / 4)  # a cosine is 1 - squared / 2
        return (self._counted(place, negative) * self._counted(place, positive).cumsum(0)).sum()

    def _counted(self, place: Tensor, times: Tensor) -> Tensor:
        """Return the histogram (n_bins + 1,) of pairs that count so often; 0 if there are none."""
        left = place.detach().floor().clamp(0, self.n_bins - 1)
        to_right = place - left
        index = left.long().flatten()
        histogram = place.new_zeros(self.n_bins + 1)
        histogram = histogram.scatter_add(0, index, ((1 - to_right) * times).flatten())
        histogram = histogram.scatter_add(0, index + 1, (to_right * times).flatten())
        return histogram / times.sum().clamp_min(1)
