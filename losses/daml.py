"""Deep adversarial metric learning (DAML)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UserError

from ._networks import OWN_OBJECTIVES, apply, correction, gradient_only
from ._require import require_not_negative, require_positive
from ._shared import Loss, masks, unit
from ._triplets import DRAWN_BY_PLACE, draw_triplets, mean_over


class DAMLLoss(Loss):
    """Learn from triplets whose negative a network has made harder.

    With f the L2-normalised embeddings, a triplet (a, p, n) of each anchor, d² squared distances,
    and a generator G of three layers that moves the negative to g = f_n + G(f_a, f_p, f_n), which
    is compared at length 1, u = g / |g|::

        embedding:  L = mean [d²(a, p) - d²(a, n) + margin]_+
                        + synthetic mean [d²(a, p) - d²(a, u) + margin]_+
        generator:  J = mean ( |g - f_a|² + regularity |g - f_n|²
                               + adversary [d²(a, u) - d²(a, p) - margin]_+ ) / sum of weights

    So G moves a negative towards the anchor, but stays near the original, and wins where the
    triplet is violated. The two are trained in one step: the embedding sees G as fixed, and also
    learns from what becomes of its numbers in G; G sees the embeddings as fixed. The value is L.

    Differs from the paper in:
        * G works on embeddings. In the paper it works on the features below the last layer, which
          then maps the synthetic features; a loss does not see this layer. So G can add to the
          negative, and begins with nothing, where the paper's makes it anew.
        * the paper first trains the embedding on real triplets alone, then both on synthetic ones.
          Here both kinds are learned from at the same time. A schedule of ``synthetic`` that begins
          with 0 does what the paper does, apart from the real ones: G learns from the start.
        * J is divided by the sum of its weights, 1 + regularity + adversary, so that its steps are
          as large as those of other networks.

    Args:
        embedding_size: d.
        margin: alpha in the paper, 1 there for unnormalised embeddings.
        synthetic: the weight of the synthetic triplets, 1 in the paper. At 0 the embedding learns
            only from real ones.
        regularity: lambda_1, 1 in the paper.
        adversary: lambda_2, 50 in the paper.
        hidden: the inner size of G.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. An anchor without a positive or a negative
        has no triplet; a batch of such anchors gives 0.

    Reference:
        Duan, Zheng, Lin, Lu, Zhou. Deep Adversarial Metric Learning. CVPR 2018, section 3.
    """

    paper: ClassVar[str] = "Duan et al. 2018, Deep Adversarial Metric Learning"
    related = "hdml"
    kind = "triplet"
    cost = "N²"
    sampler = "m_per_class"
    gallery = False
    mined = False
    random: ClassVar[bool] = True
    expected_failures: ClassVar = {
        "check_permutation": DRAWN_BY_PLACE,
        "check_gradcheck": OWN_OBJECTIVES,
    }
    check_arguments: ClassVar[dict[str, Any]] = {"hidden": 16}

    def __init__(
        self,
        embedding_size: int,
        margin: float = 0.5,
        synthetic: float = 1.0,
        regularity: float = 1.0,
        adversary: float = 50.0,
        hidden: int = 512,
    ) -> None:
        super().__init__()
        require_positive(margin=margin)
        require_not_negative(synthetic=synthetic, regularity=regularity, adversary=adversary)
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, not {hidden}")
        self.margin = margin
        self.synthetic = synthetic
        self.regularity = regularity
        self.adversary = adversary
        self.generator = correction(3 * embedding_size, hidden, hidden, embedding_size)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the means over the triplets."""
        drawn = draw_triplets(masks(embeddings, labels, indices_tuple, ref_emb, ref_labels))
        a = unit(embeddings)
        p, n = a[drawn.positive], a[drawn.negative]
        excess = _squared(a, p) + self.margin
        total = mean_over(F.relu(excess - _squared(a, n)), drawn.valid)
        if self.synthetic:
            u = unit(self._generate(a, p, n, frozen=True))
            total = total + self.synthetic * mean_over(F.relu(excess - _squared(a, u)), drawn.valid)
        a, p, n = a.detach(), p.detach(), n.detach()
        return total + gradient_only(mean_over(self._of_generator(a, p, n), drawn.valid))

    def _generate(self, a: Tensor, p: Tensor, n: Tensor, frozen: bool) -> Tensor:
        return n + apply(self.generator, torch.cat([a, p, n], 1), frozen)

    def _of_generator(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
        """Return the objective of the generator for each triplet."""
        g = self._generate(a, p, n, frozen=False)
        beyond = _squared(a, unit(g)) - _squared(a, p) - self.margin
        total = _squared(g, a) + self.regularity * _squared(g, n) + self.adversary * F.relu(beyond)
        return total / (1 + self.regularity + self.adversary)


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum(1)
