"""ProxyGML: graph metric learning with a few proxies for each class."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._require import require_not_negative, require_positive
from ._shared import Loss, OfImages, unit

_NOTHING = -1e30  # its exponential is 0, and every gradient stays finite


class ProxyGMLLoss(OfImages, Loss):
    """Classify by the cosines to the nearest of several learned proxies of each class.

    With f the L2-normalised embeddings, p the L2-normalised proxies, K for each of C classes, S the
    scale and k = ceil(ratio C K)::

        A_i  = the k proxies of image i: all of its own class, and then those with most f_i . p
        z_ic = sum_{p in A_i, of class c} f_i . p
        L    = mean of -log( exp(S z_iy) / sum_c exp(S z_ic) ) + weight R

    The sum is over the classes that have a proxy in A_i: each image has a subgraph of its own. R,
    which spreads the proxies, classifies each of them, by all proxies and without the scale::

        R = mean over the proxies p, of class y, of
            -log( exp(p . q_y) / sum_c exp(p . q_c) ),   q_c = the sum of the proxies of class c

    Differs from the paper in:
        * k is at least 2 K. With fewer than 2 / ``ratio`` classes, the paper's number leaves few
          proxies of other classes or none, and then nothing is learned.
        * f is normalised. This has no source that could be looked up: the authors' loss normalises
          the proxies, and takes the embeddings as their network gives them.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        proxies_per_class: K; 12 in the authors' commands for CUB-200-2011 and CARS196, and 1 for
            Stanford Online Products.
        ratio: the share of the proxies in a subgraph; 0.05 in these commands.
        weight: lambda of the paper; 0.3 in these commands, and 0 for Stanford Online Products.
        scale: S; 1 in the paper. With one proxy for each class it must be larger, as z is then a
            cosine.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar, 0 if there is
        only one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Zhu, Yang, Deng, Liu. Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer
        Proxies. NeurIPS 2020, arXiv:2010.13636, section 3.
    """

    paper: ClassVar[str] = (
        "Zhu et al. 2020, Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer "
        "Proxies"
    )
    kind = "proxy"
    cost = "N C + C²"
    sampler = "shuffle"
    gallery = False
    mined = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 12,
        ratio: float = 0.05,
        weight: float = 0.3,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if proxies_per_class < 1:
            raise UserError(f"proxies_per_class must be at least 1, not {proxies_per_class}")
        if not 0 < ratio <= 1:
            raise UserError(f"ratio must be above 0 and at most 1, not {ratio}")
        require_not_negative(weight=weight)
        require_positive(scale=scale)
        self.num_classes = num_classes
        self.proxies_per_class = proxies_per_class
        self.ratio = ratio
        self.weight = weight
        self.scale = scale
        shape = (num_classes, proxies_per_class, embedding_size)
        self.proxies = nn.Parameter(torch.randn(shape) / embedding_size**0.5)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropy of the images, and that of the proxies."""
        check_classes(labels, self.num_classes)
        targets = labels.long()
        proxies = unit(self.proxies.to(embeddings.dtype).flatten(0, 1)).view_as(self.proxies)
        cosines = unit(embeddings) @ proxies.flatten(0, 1).T
        chosen = self._chosen(cosines.detach(), targets).view(-1, *proxies.shape[:2])
        logits = (cosines.view_as(chosen) * chosen).sum(2)
        logits = torch.where(chosen.any(2), self.scale * logits, _NOTHING)
        return F.cross_entropy(logits, targets) + self.weight * _spread(proxies)

    def _chosen(self, cosines: Tensor, targets: Tensor) -> Tensor:
        """Return which proxies (N, C K) are in the subgraph of each image."""
        classes = torch.arange(self.num_classes, device=cosines.device)
        own = targets[:, None] == classes.repeat_interleave(self.proxies_per_class)
        total = own.shape[1]
        number = max(math.ceil(self.ratio * total), 2 * self.proxies_per_class)
        nearest = cosines.masked_fill(own, torch.inf).topk(min(number, total), dim=1).indices
        return torch.zeros_like(own).scatter_(1, nearest, value=True)


def _spread(proxies: Tensor) -> Tensor:
    """Return the mean cross entropy of the proxies (C, K, d) by the sums of the classes."""
    classes, number, _ = proxies.shape
    logits = proxies.flatten(0, 1) @ proxies.sum(1).T
    targets = torch.arange(classes, device=proxies.device).repeat_interleave(number)
    return F.cross_entropy(logits, targets)
