"""Threshold-consistent margin (TCM), added to another loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError
from zoo.registry.calling import takes_image_ids

from ._images import ImageLoss
from ._require import require_not_negative
from ._shared import AnchorLoss, Masks, Mean, unit


class TCMLoss(ImageLoss):
    """Add to a loss that positives are above one cosine, and negatives below another, for all.

    With S the cosines of the positive and negative pairs of the batch::

        L = loss + weight (mean of m+ - S over the positive pairs with S <= m+
                           + mean of S - m- over the negative pairs with S >= m-)

    Only the hard pairs count, and in the means too. A threshold between m- and m+ then separates
    matches from others, whatever the class; a ranking alone allows each class another one.

    pytorch-metric-learning has the second part as ThresholdConsistentMarginLoss, to be added by
    hand. It equals this, but copies the embeddings of all pairs: its memory is N² d, here N².

    Args:
        loss: the loss, as in ``loss: {name: tcm, loss: smooth_ap}``.
        weight: of the regulariser. The paper has a weight for each of its two means.
        positive_margin: m+; 0.9 in pytorch-metric-learning.
        negative_margin: m-; 0.5 there.

    Shape:
        embeddings (N, d), labels (N,), and what else the loss takes: a gallery, mined pairs. A mean
        over no pairs is 0.

    Reference:
        Zhang, Xu, Tang, Fang, Wu, Tighe, Xing. Threshold-Consistent Margin Loss for Open-World Deep
        Metric Learning. ICLR 2024, arXiv:2307.04047.
    """

    paper: ClassVar[str] = (
        "Zhang et al. 2024, Threshold-Consistent Margin Loss for Open-World Deep Metric Learning"
    )
    related = "roadmap, contrastive"
    kind = "pair"
    cost = "N²"  # and that of the loss
    sampler = "m_per_class"
    normalises = False  # the loss may not
    gallery = True
    mined = True
    check_arguments: ClassVar[Mapping[str, Any]] = {"loss": "contrastive"}

    def __init__(
        self,
        loss: nn.Module,
        weight: float = 1.0,
        positive_margin: float = 0.9,
        negative_margin: float = 0.5,
    ) -> None:
        super().__init__()
        require_not_negative(weight=weight)
        for name, cosine in (
            ("positive_margin", positive_margin),
            ("negative_margin", negative_margin),
        ):
            if not -1 <= cosine <= 1:
                raise UserError(f"{name} is a cosine: it must be from -1 to 1, not {cosine}")
        self.loss = loss
        self._tells_ids = takes_image_ids(loss)
        self.weight = weight
        self.margins = _Margins(positive_margin, negative_margin)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the sum of the loss and the regulariser."""
        gallery = () if ref_emb is embeddings else (ref_emb, ref_labels)
        ids = {"image_ids": self.ids} if self._tells_ids else {}
        of_loss: Tensor = self.loss(embeddings, labels, indices_tuple, *gallery, **ids)
        margins = self.margins.value(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return of_loss + self.weight * margins

    @property
    def part(self) -> Callable[[Tensor, Tensor, slice], tuple[Tensor, Tensor]]:
        """The parts of both, see :meth:`AnchorLoss.part`; there are none if the loss has none."""
        part: Any = self.loss.part

        def of_both(embeddings: Tensor, labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            totals, counts = part(embeddings, labels, rows)
            more, others = self.margins.part(embeddings, labels, rows)
            return torch.cat([totals, self.weight * more]), torch.cat([counts, others])

        return of_both


class _Margins(AnchorLoss):
    """The regulariser alone."""

    def __init__(self, positive: float, negative: float) -> None:
        super().__init__()
        self.positive = positive
        self.negative = negative

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the means over the pairs of each kind that are beyond their margin."""
        f = unit(anchors)
        cosines = f @ (f if gallery is anchors else unit(gallery)).T
        low, high = self.positive - cosines, cosines - self.negative
        hard = (pairs.positive & (low >= 0), pairs.negative & (high >= 0))
        return [
            Mean.where(hard[0], low, pairs.positive_times),
            Mean.where(hard[1], high, pairs.negative_times),
        ]
