"""SoftTriple."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._require import require_not_negative, require_positive
from ._shared import Loss, OfImages, safe_sqrt, unit


class SoftTripleLoss(OfImages, Loss):
    """Classify by cosines to several learned centres of each class.

    With f the L2-normalised embeddings, w_c^k the L2-normalised K centres of class c, and T the
    number of classes::

        S_c = sum_k q_k f . w_c^k,   q = softmax_k(f . w_c^k / gamma)
        L   = mean of -log( exp(scale (S_y - margin))
                            / (exp(scale (S_y - margin)) + sum_{c != y} exp(scale S_c)) )
            + tau / (T K (K - 1)) sum_c sum_{k < l} |w_c^k - w_c^l|

    The last term, which merges centres that a class does not need, depends only on the centres.
    pytorch-metric-learning's SoftTripleLoss with its SparseCentersRegularizer gives the same value,
    but compares the centres of all classes with each other: (T K)² numbers, 10^10 for Stanford
    Online Products.

    Args:
        num_classes: T, the classes of the training data.
        embedding_size: d.
        centers_per_class: K; 10 in the paper.
        scale: lambda of the paper, 20.
        gamma: of the softmax over a class' centres; 0.1 in the paper.
        margin: delta of the paper, 0.01.
        tau: weight of the last term; 0.2 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar. With one class,
        only the last term remains. A gallery and mined pairs have no meaning for it.

    Reference:
        Qian, Shang, Sun, Hu, Li, Jin. SoftTriple Loss: Deep Metric Learning Without Triplet
        Sampling. ICCV 2019, arXiv:1909.05235, section 3.
    """

    paper: ClassVar[str] = (
        "Qian et al. 2019, SoftTriple Loss: Deep Metric Learning Without Triplet Sampling"
    )
    related = "proxy_nca, normface"
    kind = "proxy"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
    ) -> None:
        super().__init__()
        if centers_per_class < 1:
            raise UserError(f"centers_per_class must be at least 1, not {centers_per_class}")
        require_positive(scale=scale, gamma=gamma)
        require_not_negative(margin=margin, tau=tau)
        self.num_classes = num_classes
        self.scale = scale
        self.gamma = gamma
        self.margin = margin
        self.tau = tau
        self.centers = nn.Parameter(torch.randn(num_classes, centers_per_class, embedding_size))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy and the term of the centres."""
        check_classes(labels, self.num_classes)
        targets = labels.long()
        to_own = F.one_hot(targets, self.num_classes).to(embeddings.dtype)
        logits = self.get_logits(embeddings) - self.scale * self.margin * to_own
        return F.cross_entropy(logits, targets) + self.tau * _spread(self._unit_centers(embeddings))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, T) of the classes, without the margin."""
        centers = self._unit_centers(embeddings)
        cosines = (unit(embeddings) @ centers.flatten(0, 1).T).view(-1, *centers.shape[:2])
        return self.scale * (F.softmax(cosines / self.gamma, dim=2) * cosines).sum(2)

    def _unit_centers(self, embeddings: Tensor) -> Tensor:
        return unit(self.centers.to(embeddings.dtype).flatten(0, 1)).view_as(self.centers)


def _spread(centers: Tensor) -> Tensor:
    """Return the sum of distances within classes, over T K (K - 1); centers (T, K, d)."""
    classes, k, _ = centers.shape
    if k == 1:
        return centers.sum() * 0
    first, second = torch.triu_indices(k, k, offset=1, device=centers.device)
    cosines = (centers @ centers.transpose(1, 2))[:, first, second]
    return safe_sqrt(2 - 2 * cosines).sum() / (classes * k * (k - 1))
