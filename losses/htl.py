"""Hierarchical triplet loss (HTL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from torch import Tensor

from zoo.errors import UserError
from zoo.support.precision import full_float32, upcast

from ._classes import check_classes
from ._require import require_not_negative
from ._shared import Loss, Masks, Mean, masks, only_finite, unit, unit_distances

_FARTHEST = 4.0  # squared distance of two unit vectors


class HTLLoss(Loss):
    """Triplets whose margin is the distance at which a tree of the classes joins two of them.

    With D the squared distances of the L2-normalised embeddings, over all triplets of a batch::

        L     = 1/2 mean of max(0, D_ap - D_an + alpha)
        alpha = beta + d_H(y_a, y_n) - s(y_a)

    At the start of each epoch, all training images are embedded. The distance of two classes is
    the mean of D over their images, s(c) that within class c, and d_0 the mean of s. The classes
    are the leaves of a tree, joined from the nearest to the farthest. Its levels are cut at::

        d_l = d_0 + l (4 - d_0) / levels            l = 0 ... levels

    and H(c, k) is the lowest level at which c and k are in one node. So alpha asks a triplet for
    more than the distances of the epoch before, by beta: it is large where classes are far apart,
    and where a class is narrow. Until a tree is built, alpha is beta.

    The sums of an anchor come from its sorted distances: O(N² log N), not N³. A tree takes C²/2
    distances in float64, three times: 1.5 GB for the 11,318 classes of Stanford Online Products.

    Differs from the paper, or chooses where its text leaves it open:
        * the distance of two nodes is the mean over the pairs of their classes.
        * distances of triplets are squared, as those of the tree and s.

    Args:
        num_classes: C, of the training data; supplied by the run.
        beta: added to all margins; 0.1 in the paper.
        levels: of the tree above its leaves; 16 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1, gallery ``ref_emb`` (M, d); returns a
        scalar. A batch without triplets gives 0. Mined pairs have no meaning for it.

    Reference:
        Ge, Huang, Dong, Scott. Deep Metric Learning with Hierarchical Triplet Loss. ECCV 2018,
        arXiv:1810.06951, section 4. Values as remembered: the text was not at hand, nor code.
    """

    paper: ClassVar[str] = "Ge et al. 2018, Deep Metric Learning with Hierarchical Triplet Loss"
    kind = "triplet"
    cost = "N² log N"
    sampler = "anchor_neighbours"
    mined = False

    def __init__(self, num_classes: int, beta: float = 0.1, levels: int = 16) -> None:
        super().__init__()
        require_not_negative(beta=beta)
        if levels < 1:
            raise UserError(f"levels must be at least 1, not {levels}")
        self.num_classes, self.beta, self.levels = num_classes, beta, levels
        self.nodes: Tensor
        self.thresholds: Tensor
        self.spread: Tensor
        leaves = torch.arange(num_classes).repeat(levels + 1, 1)
        self.register_buffer("nodes", leaves)  # of each class, at each level
        self.register_buffer("thresholds", torch.zeros(levels + 2))
        self.register_buffer("spread", torch.zeros(num_classes))

    @torch.no_grad()
    def begin_epoch(
        self, epoch: int, labels: Tensor, embed: Callable[[Sequence[int] | None], Tensor]
    ) -> None:
        """Build the tree of the classes from the embeddings of all training images."""
        check_classes(labels, self.num_classes)
        means, counts = _class_means(unit(embed(None).float()), labels, self.num_classes)
        there = (counts > 0).nonzero().flatten().cpu().numpy()
        if len(there) < 2:
            return
        within = (1 - means.square().sum(1)) * 2 * counts / (counts - 1).clamp_min(1)
        self.spread.copy_(within.clamp_min(0))  # of one image: 0
        start = float(self.spread[counts > 1].mean()) if (counts > 1).any() else 0.0
        cuts = start + np.arange(self.levels + 1) * (_FARTHEST - start) / self.levels
        nodes = np.arange(self.num_classes) + len(there)  # a class without images stays alone
        nodes = np.tile(nodes, (self.levels + 1, 1))
        nodes[:, there] = _cut(means[there].cpu().double().numpy(), cuts)
        self.nodes.copy_(torch.from_numpy(nodes))
        self.thresholds.copy_(torch.from_numpy(np.append(cuts, _FARTHEST)))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return half the mean over all triplets."""
        pairs = masks(embeddings, labels, None, ref_emb, ref_labels)
        f = unit(embeddings)
        g = f if ref_emb is embeddings else unit(ref_emb)
        total, number = self._triplets(f, labels, g, ref_labels, pairs)
        return total / number.clamp_min(1)

    def part(self, embeddings: Tensor, labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return what some anchors add to the loss of a batch, see :meth:`AnchorLoss.part`."""
        with full_float32(embeddings.device):
            x, one = only_finite(upcast(embeddings))
            labels, f = labels.long(), unit(x)
            same = labels[rows, None] == labels
            positive = same.clone()
            positive.diagonal(rows.start).fill_(False)
            pairs = Masks(positive, ~same)
            total, number = self._triplets(f[rows], labels[rows], f, labels, pairs)
            return total.reshape(1) * one, number.reshape(1)

    def _triplets(self, f: Tensor, y: Tensor, g: Tensor, other: Tensor, pairs: Masks) -> Mean:
        """Return half the mean of the hinges over the triplets of some anchors f (n, d)."""
        check_classes(y, self.num_classes)
        check_classes(other, self.num_classes)
        distance = unit_distances(f, g)
        reach = distance - self._margins(y, other).to(distance.dtype)
        ascending = torch.where(pairs.negative, reach, torch.inf).sort(1).values
        # A triplet counts if D_ap > D_an - alpha: so do the first negatives of the sorted ones.
        count = torch.searchsorted(ascending.detach(), distance.detach().contiguous())
        ascending = torch.where(ascending.isfinite(), ascending, 0)
        sums = torch.nn.functional.pad(ascending.cumsum(1), (1, 0))
        hinges = count * distance - sums.gather(1, count)
        number = (pairs.positive.sum(1) * pairs.negative.sum(1)).sum().to(distance.dtype)
        return Mean(torch.where(pairs.positive, hinges, 0).sum() / 2, number)

    def _margins(self, y: Tensor, other: Tensor) -> Tensor:
        """Return alpha (n, M) of anchors and negatives of classes y (n,) and other (M,)."""
        apart = torch.zeros(len(y), len(other), dtype=torch.int64, device=y.device)
        for level in self.nodes:  # nodes only grow: the levels at which two are apart come first
            apart += level[y][:, None] != level[other]
        return self.beta + self.thresholds[apart] - self.spread[y][:, None]


def _class_means(f: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the means (C, d) and the numbers (C,) of the images f (n, d) of each class."""
    counts = torch.bincount(labels, minlength=classes).to(f.dtype)
    sums = f.new_zeros(classes, f.shape[1]).index_add_(0, labels, f)
    return sums / counts.clamp_min(1)[:, None], counts


def _cut(means: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the node of each class (levels, C): the tree of class means (C, d), cut at heights."""
    # 2 - 2 a . b is the mean of D over pairs of images; the upper triangle, row by row.
    rows = [2 - 2 * means[i + 1 :] @ means[i] for i in range(len(means) - 1)]
    tree = hierarchy.linkage(np.clip(np.concatenate(rows), 0, _FARTHEST), "average")
    return np.stack([hierarchy.fcluster(tree, cut, "distance") - 1 for cut in cuts])
