"""Mean average precision by direct loss minimisation (mAP-DLM)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from zoo.errors import UserError

from ._ap_inference import Lists
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit, unit_distances


class MAPDLMLoss(AnchorLoss):
    """Move the scores away from a ranking that is slightly worse, or towards a better one.

    With S the cosines, P(a) and Q(a) the positives and negatives of anchor a, a ranking y has
    y_pn = 1 where the positive p is above the negative n, else -1, and the score::

        F_a(y) = mean_{p in P(a), n in Q(a)} of y_pn (S_ap - S_an)

    The ranking by S, y_w, has the largest. Direct loss minimisation estimates the gradient of the
    expected 1 - AP(y_w), which is a step function, by that of F::

        +1/epsilon (dF(y+) - dF(y_w))    y+ = argmax_y F(y) + epsilon (1 - AP(y))    "positive"
        -1/epsilon (dF(y-) - dF(y_w))    y- = argmax_y F(y) - epsilon (1 - AP(y))    "negative"

    over the anchors that have a positive and a negative. It is the derivative of the value here::

        L = mean_a of +-1/epsilon (max_y [F_a(y) +- epsilon (1 - AP(y))] - F_a(y_w))

    which goes to 1 - AP(y_w) with epsilon to 0, from above for "positive", from below for
    "negative". The maximum over all rankings is found exactly, by dynamic programming: time N²
    times the positives of an anchor, and N³ on a GPU, which would have to wait for their number.

    Differs from the authors' code in:
        * the ranking. There, the table of the dynamic programme's choices is used as y, also where
          the best ranking does not pass; for the negative update it is often another one.
        * a factor on F of the best ranking, there 10 in the configuration for Omniglot.

    Args:
        epsilon: 1 in the authors' configuration.
        update: "positive", as in their configuration, or "negative".

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0.

    Reference:
        Triantafillou, Zemel, Urtasun. Few-Shot Learning Through an Information Retrieval Lens.
        NIPS 2017, arXiv:1707.02610; checked with the authors' code. Update and dynamic programme
        are those of Song, Schwing, Zemel, Urtasun. Training Deep Neural Networks via Direct Loss
        Minimization. ICML 2016, arXiv:1511.06411.
    """

    paper: ClassVar[str] = (
        "Triantafillou et al. 2017, Few-Shot Learning Through an Information Retrieval Lens"
    )
    kind = "list"
    cost = "N³"
    sampler = "m_per_class"

    def __init__(
        self, epsilon: float = 1.0, update: Literal["positive", "negative"] = "positive"
    ) -> None:
        super().__init__()
        require_positive(epsilon=epsilon)
        if update not in ("positive", "negative"):
            raise UserError(f'update must be "positive" or "negative", not {update!r}')
        self.epsilon = epsilon
        self.update = update

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the anchors that have a positive and a negative."""
        f = unit(anchors)
        scores = -unit_distances(f, f if gallery is anchors else unit(gallery)) / 2  # S - 1
        lists = Lists.of(scores, pairs)
        signed = self.epsilon if self.update == "positive" else -self.epsilon
        direct, ranked = lists.maximise(signed), lists.sorted_by_score()
        value = (lists.score(direct) - lists.score(ranked)) / signed + lists.loss(direct)
        return [Mean.where(pairs.positive.any(1) & pairs.negative.any(1), value)]
