"""Hardness-aware deep metric learning (HDML)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._networks import OWN_OBJECTIVES, apply, correction, gradient_only
from ._require import require_not_negative, require_positive
from ._shared import Loss, masks, safe_sqrt, unit
from ._triplets import DRAWN_BY_PLACE, Triplets, draw_triplets, mean_over

_UNKNOWN = 1e6  # the mean of a loss before it is known, as in the authors' code


class HDMLLoss(Loss):
    """Learn from triplets whose negatives come nearer as the embedding gets better.

    With f the L2-normalised embeddings and a triplet (a, p, n) of each anchor, the negative is
    pulled along the line to the anchor, at most to the distance of the positive (Eq. 5 and 6)::

        h = a + (n - a) (d(a, p) + (d(a, n) - d(a, p)) exp(-alpha / J_avg)) / d(a, n)
            if d(a, n) > d(a, p), else n

    The fraction is a constant: through it, positives that are far apart would make a negative count
    as farther. J_avg is the mean loss of late, so that synthetic negatives are as hard as the
    embedding can take. A point of the line need not be of the class of n. A generator G maps the
    triplet to one that is, and the embedding learns from both (Eq. 9)::

        J_m   = mean [d²(a, p) - d²(a, n) + margin]_+                         real
        J_syn = the same for G(a), G(p), G(h), each at length 1               synthetic
        L     = exp(-beta / J_gen) J_m + (1 - exp(-beta / J_gen)) J_syn

    G has to give back real embeddings, and to keep the class of synthetic ones, by a classifier
    that is trained on real ones (Eq. 7 and 8)::

        J_gen      = (1 - softness) mean |f - G(f)|² + softness mean CE(classifier(G(a, p, h)))
        classifier:  mean CE(classifier(f))

    While G is poor, J_gen is large, and L is the real loss. J_avg and J_gen are means over 64
    batches, and are saved. All are trained in one step, each by its own objective; the embedding
    sees G as fixed. The value is L.

    Differs from the paper in:
        * G maps to embeddings. In the paper it maps to the features below the last layer, which
          then maps them back; a loss does not see this layer. So G can add to its input, and begins
          with nothing.
        * that the fraction is a constant is not in the authors' code, but in that of GeDML, of the
          authors' group. Without, positives are pushed apart.
        * the base loss is that of triplets, one for each anchor; the paper also has N-pairs.
        * objectives are means, those of the authors' code sums with large factors (softness has a
          factor of 10,000 there), so alpha and beta are of another size.

    Args:
        num_classes: the classes of the training data.
        embedding_size: d.
        margin: of the triplets, in squared distance.
        alpha: of the pull; larger is easier. The paper has 7 for triplets, for a loss that is
            a sum over the batch.
        beta: of the weight; larger gives more weight to synthetic triplets. The paper has 10,000.
        softness: lambda, 0.5 in the paper.
        synthetic: False leaves only J_m.
        hidden: the inner size of G, 512 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar. An anchor
        without a positive or a negative has no triplet; a batch of such anchors gives 0, and does
        not count for the means.

    Reference:
        Zheng, Chen, Lu, Zhou. Hardness-Aware Deep Metric Learning. CVPR 2019, arXiv:1903.05503;
        the means over 64 batches are from the authors' code.
    """

    paper: ClassVar[str] = "Zheng et al. 2019, Hardness-Aware Deep Metric Learning"
    related = "daml"
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
        num_classes: int,
        embedding_size: int,
        margin: float = 0.5,
        alpha: float = 0.1,
        beta: float = 1.0,
        softness: float = 0.5,
        synthetic: bool = True,
        hidden: int = 512,
    ) -> None:
        super().__init__()
        require_positive(margin=margin, alpha=alpha)
        require_not_negative(beta=beta)
        if not 0 <= softness <= 1:
            raise UserError(f"softness must be from 0 to 1, not {softness}")
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, not {hidden}")
        self.num_classes = num_classes
        self.margin = margin
        self.alpha = alpha
        self.beta = beta
        self.softness = softness
        self.synthetic = synthetic
        self.generator = correction(embedding_size, hidden, embedding_size)
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.metric, self.generation = _Recent(), _Recent()

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the weighted losses of real and of synthetic triplets."""
        check_classes(labels, self.num_classes)
        f = unit(embeddings)
        drawn = draw_triplets(masks(embeddings, labels, indices_tuple, ref_emb, ref_labels))
        real = (f, f[drawn.positive], f[drawn.negative])
        metric = self._triplet_loss(real, drawn)
        if not self.synthetic:
            return metric
        pulled = self._pull(*real)
        made = [unit(self._generate(x, frozen=True)) for x in (*real[:2], pulled)]
        share = torch.exp(-self.beta / self.generation.mean).to(f.dtype)
        total = share * metric + (1 - share) * self._triplet_loss(made, drawn)
        generation, classification = self._of_networks(f.detach(), pulled.detach(), labels, drawn)
        if self.training:
            counts = drawn.valid.any()
            self.metric.add(metric, counts)
            self.generation.add(generation, counts)
        return total + gradient_only(generation + classification)

    def _triplet_loss(self, triplet: tuple[Tensor, ...] | list[Tensor], drawn: Triplets) -> Tensor:
        a, p, n = triplet
        excess = (a - p).square().sum(1) - (a - n).square().sum(1) + self.margin
        return mean_over(F.relu(excess), drawn.valid)

    def _pull(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
        """Return the negatives, pulled towards their anchors."""
        near, far = (safe_sqrt((a - x).square().sum(1, keepdim=True)) for x in (p, n))
        stays = torch.exp(-self.alpha / self.metric.mean).to(a.dtype)
        beyond = far > near
        ratio = ((near + (far - near) * stays) / torch.where(beyond, far, 1)).detach()
        return torch.where(beyond, a + (n - a) * ratio, n)

    def _generate(self, x: Tensor, frozen: bool) -> Tensor:
        return x + apply(self.generator, x, frozen)

    def _of_networks(
        self, f: Tensor, pulled: Tensor, labels: Tensor, drawn: Triplets
    ) -> tuple[Tensor, Tensor]:
        """Return the objectives of the generator and of the classifier."""
        given_back = self._generate(f, frozen=False)
        recovery = (f - given_back).square().sum(1).mean()
        made = self._generate(pulled, frozen=False)
        kept = [
            F.cross_entropy(apply(self.classifier, x, frozen=True), y, reduction="none")
            for x, y in ((given_back, labels), (made, labels[drawn.negative]))
        ]
        soft = (kept[0] + kept[0][drawn.positive] + kept[1]) / 3
        generation = (1 - self.softness) * recovery + self.softness * mean_over(soft, drawn.valid)
        classification = F.cross_entropy(apply(self.classifier, f), labels)
        return generation, classification


class _Recent(nn.Module):
    """The mean of a loss over the last 64 batches, in steps of 64."""

    mean: Tensor
    total: Tensor
    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(_UNKNOWN))
        self.register_buffer("total", torch.tensor(0.0))
        self.register_buffer("number", torch.tensor(0))

    @torch.no_grad()
    def add(self, value: Tensor, counts: Tensor) -> None:
        """Add a batch, unless it does not count."""
        self.total += torch.where(counts, value, 0).to(self.total.dtype)
        self.number += counts
        full = self.number >= 64
        self.mean.copy_(torch.where(full, self.total / 64, self.mean))
        self.total *= ~full
        self.number *= ~full
