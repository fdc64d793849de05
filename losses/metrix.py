"""Metrix: mixed embeddings with mixed labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta

from zoo.errors import UserError

from ._require import require_not_negative, require_positive
from ._shared import Loss, Mean, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite
_LEAST = 1e-6  # of a share, and of the squared length of a mixture


class MetrixLoss(Loss):
    """Compare each anchor also with mixtures of two embeddings, which are positive to a degree.

    With f the L2-normalised embeddings, s the cosine, and P(a) and Q(a) the positives and negatives
    of anchor a, the mixtures of an anchor are made of one partner q and each of its negatives::

        v = y f_q + (1 - y) f_n,   n in Q(a),   y drawn from Beta(concentration, concentration)

    The partner is the anchor itself or one of its positives, drawn at random, each kind in half of
    the calls. y is the degree to which v is a positive of the anchor::

        L = clean loss + weight mixed loss

    With ``form="multi_similarity"``, and m the margin::

        clean = mean_a of 1/beta  log(1 + sum_{p in P(a)} exp(-beta  (s_ap - m)))
                        + 1/gamma log(1 + sum_{n in Q(a)} exp( gamma (s_an - m)))
        mixed = mean_a of 1/beta  log(1 + sum_v y       exp(-beta  (s_av - m)))
                        + 1/gamma log(1 + sum_v (1 - y) exp( gamma (s_av - m)))

    With ``form="contrastive"``, where each mean is over pairs (a, p), (a, n) or (a, v), and those
    of [ ]+, the positive part, are over the pairs where it is above 0::

        clean = mean of (1 - s_ap)   + mean of [s_an - m]+
        mixed = mean of y (1 - s_av) + mean of (1 - y) [s_av - m]+

    The clean loss of the first form is the zoo's ``multi_similarity``.

    Differs from the paper in:
        * one positive of each anchor is mixed in a call, not all, which takes N² and not N³. The
          authors' code also takes one, the first.
        * mixtures are of embeddings. The paper also mixes images or inner features, which a loss
          does not see.
        * the contrastive form has means, the paper sums, so that negatives do not outweigh.

    Args:
        form: ``"multi_similarity"`` or ``"contrastive"``.
        weight: w of the paper; 0.4 in the authors' code, 0 leaves the clean loss.
        concentration: of the Beta distribution; 2 in the authors' code.
        margin: m, a cosine.
        beta: of the positives; 2 in the paper of the multi-similarity loss.
        gamma: of the negatives; 50 in that paper.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. Without negatives only the clean positives
        remain; without positives the partners are the anchors, or there are no mixtures. A gallery
        and mined pairs have no meaning for it.

    Reference:
        Venkataramanan, Psomas, Kijak, Amsaleg, Karantzalos, Avrithis. It Takes Two to Tango: Mixup
        for Deep Metric Learning. ICLR 2022, arXiv:2106.04990, section 3.
    """

    paper: ClassVar[str] = (
        "Venkataramanan et al. 2022, It Takes Two to Tango: Mixup for Deep Metric Learning"
    )
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"
    gallery = False
    mined = False
    random = True
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_permutation": "partners and shares are drawn by the places in the batch"
    }

    def __init__(
        self,
        form: Literal["multi_similarity", "contrastive"] = "multi_similarity",
        weight: float = 0.4,
        concentration: float = 2.0,
        margin: float = 0.5,
        beta: float = 2.0,
        gamma: float = 50.0,
    ) -> None:
        super().__init__()
        if form not in ("multi_similarity", "contrastive"):
            raise UserError(f"form must be multi_similarity or contrastive, not {form!r}")
        require_not_negative(weight=weight)
        require_positive(concentration=concentration, beta=beta, gamma=gamma)
        self.form = form
        self.weight = weight
        self.concentration = concentration
        self.margin = margin
        self.beta = beta
        self.gamma = gamma

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the clean and the mixed loss."""
        f = unit(embeddings)
        same = labels[:, None] == labels
        positive = same.clone().fill_diagonal_(fill_value=False)
        cosines = f @ f.T
        mixed = self._mix(cosines, positive, ~same)
        loss = self._contrastive if self.form == "contrastive" else self._multi_similarity
        one = torch.ones_like(cosines)
        return loss(cosines, positive, ~same, one, one) + self.weight * loss(
            mixed.cosines, mixed.valid, mixed.valid, mixed.share, 1 - mixed.share
        )

    def _mix(self, cosines: Tensor, positive: Tensor, negative: Tensor) -> _Mixtures:
        """Return the cosines (N, N) of anchors to the mixtures of their partners and negatives."""
        partner, share = _draw(positive, self.concentration)
        share = share.to(cosines.dtype)
        of_partners = cosines.gather(1, partner[:, None])  # those of the anchors to them
        product = share * of_partners + (1 - share) * cosines
        lengths = cosines.diagonal()  # squared: 1, or 0 for embeddings of 0
        squared = share.square() * lengths[partner, None] + (1 - share).square() * lengths
        squared = squared + 2 * share * (1 - share) * cosines[partner]
        itself = partner == torch.arange(len(partner), device=partner.device)
        has_partner = torch.where(itself.all(), True, positive.any(1))
        valid = negative & has_partner[:, None]
        return _Mixtures(product / squared.clamp_min(_LEAST).sqrt(), share, valid)

    def _multi_similarity(
        self, s: Tensor, pulled: Tensor, pushed: Tensor, y: Tensor, z: Tensor
    ) -> Tensor:
        pull = _soft_sum(self.beta * (self.margin - s) + y.log(), pulled) / self.beta
        push = _soft_sum(self.gamma * (s - self.margin) + z.log(), pushed) / self.gamma
        return (pull + push).mean()

    def _contrastive(
        self, s: Tensor, pulled: Tensor, pushed: Tensor, y: Tensor, z: Tensor
    ) -> Tensor:
        above = F.relu(s - self.margin)
        means = (
            Mean.where(pulled, y * (1 - s)),
            Mean.where(pushed & (above.detach() > 0), z * above),
        )
        return torch.stack([total / number.clamp_min(1) for total, number in means]).sum()


class _Mixtures(NamedTuple):
    """The cosines of anchors to mixtures, the shares of the partners, and which exist: (N, N)."""

    cosines: Tensor
    share: Tensor
    valid: Tensor


def _draw(positive: Tensor, concentration: float) -> tuple[Tensor, Tensor]:
    """Return a partner (N,) for each anchor, and its share (N, N) with each other image.

    In half of the calls the partners are the anchors themselves. An anchor without positives is its
    own partner.
    """
    n = len(positive)
    kind = {"dtype": torch.float64, "device": positive.device}
    lot = torch.rand((n, n), **kind) * positive
    itself = torch.arange(n, device=positive.device)
    partner = torch.where(positive.any(1), lot.argmax(1), itself)
    partner = torch.where(torch.rand((), **kind) < 0.5, partner, itself)
    both = torch.full((), concentration, **kind)
    share = Beta(both, both, validate_args=False).sample((n, n))
    return partner, share.clamp(_LEAST, 1 - _LEAST)


def _soft_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return log(1 + sum exp x) of each row, over the mask; 0 where that is empty."""
    return -F.logsigmoid(-torch.where(mask, x, _NOTHING).logsumexp(1))
