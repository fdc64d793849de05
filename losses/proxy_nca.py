"""Proxy-NCA."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._shared import Loss, OfImages, unit, unit_distances

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class ProxyNCALoss(OfImages, Loss):
    """Bring an image near the learned proxy of its class and away from all other proxies.

    With D the squared Euclidean distances between L2-normalised embeddings and L2-normalised
    proxies p, one for each class, and s the scale::

        L = mean of s D(x, p_y) + log sum_{z != y} exp(-s D(x, p_z))

    The positive is not part of the sum, as in the paper, so that L may be below 0. With
    ``include_positive=True`` it is, which makes L the cross entropy of logits -s D and equal to
    pytorch-metric-learning's ProxyNCALoss with ``softmax_scale=s``; its gradient is that without
    the positive times sigmoid(L), and vanishes for well placed images.

    Args:
        num_classes: the classes of the training data.
        embedding_size: d.
        scale: s; 1 in the paper. Lengths a of the embeddings and b of the proxies, as in later
            code, correspond to a scale of a b: the (3, 3) of widely used code is 9.
        include_positive: whether the sum includes the positive, see above.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar, 0 if there is
        only one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Movshovitz-Attias, Toshev, Leung, Ioffe, Singh. No Fuss Distance Metric Learning using
        Proxies. ICCV 2017, arXiv:1703.07464, section 3.
    """

    paper: ClassVar[str] = (
        "Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies"
    )
    related = "proxy_anchor, proxy_nca_pp, nca"
    kind = "proxy"
    cost = "N C"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 1.0,
        include_positive: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < scale < float("inf"):
            raise UserError(f"scale must be positive, not {scale}")
        self.num_classes = num_classes
        self.scale = scale
        self.include_positive = include_positive
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size) / 8)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the images."""
        check_classes(labels, self.num_classes)
        logits = self.get_logits(embeddings)
        if self.num_classes == 1:
            return logits.sum() * 0
        if self.include_positive:
            return F.cross_entropy(logits, labels.long())
        own = labels.long()[:, None]
        others = logits.scatter(1, own, _NOTHING).logsumexp(1)
        return (others - logits.gather(1, own).squeeze(1)).mean()

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the classes, -s D."""
        proxies = unit(self.proxies.to(embeddings.dtype))
        return -self.scale * unit_distances(unit(embeddings), proxies)
