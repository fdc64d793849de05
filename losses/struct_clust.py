"""Structured clustering loss (facility location)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import Loss, safe_sqrt, unit, unit_distances


class StructClustLoss(Loss):
    """Make the clustering by classes better than any other, by a margin that is their difference.

    With D the Euclidean distances of the L2-normalised embeddings, K the classes of the batch, S a
    set of K images called medoids and g(S) the assignment of every image to its nearest medoid::

        F(S)  = -sum_i min_{j in S} D_ij
        F~    = -sum_k min_{j of class k} sum_{i of class k} D_ij
        Delta = 1 - NMI(g(S), y), the mutual information over the root of both entropies' product
        L     = max(0, max_S [F(S) + gamma Delta(S)] - F~)

    a sum over the batch. The maximum over S is sought greedily, medoid by medoid, and improved by
    sweeps of swaps within each cluster (PAM). Medoids, assignment and NMI are constants for the
    gradient.

    Each greedy step rates all candidates at once, from counts that change only where an image
    moves: O(N²), and O(K N²) in total.

    Args:
        gamma: weight of the disagreement, in units of summed distance. The paper's value is not
            stated; search it.
        pam_sweeps: sweeps over the clusters.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar, 0 for a single class and for classes of
        one image each. A gallery and mined pairs have no meaning for it.

    Reference:
        Song, Jegelka, Rathod, Murphy. Deep Metric Learning via Facility Location. CVPR 2017,
        arXiv:1612.01213, section 3; as in TensorFlow's code of it.
    """

    paper: ClassVar[str] = "Song et al. 2017, Deep Metric Learning via Facility Location"
    related = "spectral_clust"
    kind = "clustering"
    cost = "K N²"
    sampler = "m_per_class"
    gallery = False
    mined = False
    check_arguments: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}

    def __init__(self, gamma: float, pam_sweeps: int = 5) -> None:
        super().__init__()
        if not 0 <= gamma < float("inf"):
            raise UserError(f"gamma must be at least 0, not {gamma}")
        if pam_sweeps < 0:
            raise UserError(f"pam_sweeps must be at least 0, not {pam_sweeps}")
        self.gamma = float(gamma)
        self.pam_sweeps = pam_sweeps

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the hinge."""
        f = unit(embeddings)
        distance = safe_sqrt(unit_distances(f, f))
        with torch.no_grad():
            exact = distance.double().fill_diagonal_(0)
            classes: Tensor = torch.unique(labels, return_inverse=True)[1]
            search = _Search(exact, classes, self.gamma)
            medoids = search.sweep(search.greedy(), self.pam_sweeps)
            nearest = _assign(exact, medoids)
            violation = self.gamma * (1 - search.nmi(nearest))
            own = _medoid_of_class(exact, classes)
        images = torch.arange(len(f), device=f.device)
        of_classes = _sum(distance, images, own)
        of_clusters = _sum(distance, images, medoids[nearest])
        # of_classes - of_clusters is F(S) - F~
        return (of_classes - of_clusters + violation.to(distance.dtype)).clamp_min(0)


def _sum(distance: Tensor, images: Tensor, medoids: Tensor) -> Tensor:
    """Return the sum of the distances to the medoids; an image is at 0 from itself, exactly."""
    return torch.where(images == medoids, 0, distance[images, medoids]).sum()


def _assign(distance: Tensor, medoids: Tensor) -> Tensor:
    """Return for each image the position of its medoid (N,); a medoid is its own."""
    nearest = distance[:, medoids].argmin(1)
    return nearest.index_copy(0, medoids, torch.arange(len(medoids), device=medoids.device))


def _medoid_of_class(distance: Tensor, classes: Tensor) -> Tensor:
    """Return for each image the image of its class that is nearest to all of that class, (N,)."""
    same = classes[:, None] == classes
    sums = torch.where(same, distance, 0).sum(0)
    return torch.where(same, sums, torch.inf).argmin(1)


class _Moves(NamedTuple):
    """The counts that would result if images moved to a new cluster, by candidate."""

    clusters: Tensor  # (M,) sum of n log n over the clusters
    cells: Tensor  # (M,) likewise over the pairs of a cluster and a class


class _Search:
    """Searches for the medoids that violate the loss most, in float64 and without a graph.

    NMI depends only on sums of n log n over the sizes n of clusters, of classes, and of their
    intersections, which are read from a table.
    """

    def __init__(self, distance: Tensor, classes: Tensor, gamma: float) -> None:
        self.distance, self.classes, self.gamma = distance, classes, gamma
        self.n = len(distance)
        counts = torch.bincount(classes)
        self.k = len(counts)
        numbers = torch.arange(self.n + 1, dtype=torch.float64, device=distance.device)
        self.n_log_n = torch.special.xlogy(numbers, numbers)
        self.of_classes = self.n_log_n[counts].sum()

    def greedy(self) -> Tensor:
        """Return K medoids, each the best addition to those before it."""
        nearest = self.distance.new_full((self.n,), torch.inf)
        assigned = torch.zeros_like(self.classes)
        taken = torch.zeros_like(self.classes, dtype=torch.bool)
        itself = torch.eye(self.n, dtype=torch.bool, device=taken.device)
        medoids = []
        for step in range(self.k):
            moved = (self.distance < nearest[:, None]) | itself
            closest = torch.where(moved, self.distance, nearest[:, None])
            counts = self._after(assigned, moved)
            score = self.gamma * (1 - self._nmi(counts)) - closest.sum(0)
            chosen = score.masked_fill(taken, -torch.inf).argmax()
            assigned = torch.where(moved[:, chosen], step, assigned)
            nearest = closest[:, chosen]
            taken[chosen] = True
            medoids.append(chosen)
        return torch.stack(medoids)

    def sweep(self, medoids: Tensor, sweeps: int) -> Tensor:
        """Return the medoids after swaps with members of their clusters."""
        medoids = medoids.clone()
        for _ in range(sweeps):
            before = medoids.clone()
            clusters = _assign(self.distance, medoids)
            for place in range(self.k):
                self._swap(medoids, place, (clusters == place).nonzero().flatten())
            if torch.equal(before, medoids):
                break
        return medoids

    def nmi(self, assigned: Tensor) -> Tensor:
        """Return the normalised mutual information of an assignment and the classes."""
        nobody = torch.zeros_like(assigned, dtype=torch.bool)[:, None]
        return self._nmi(self._after(assigned, nobody))[0]

    def _swap(self, medoids: Tensor, place: int, members: Tensor) -> None:
        """Replace one medoid by the best member of its cluster."""
        others = torch.cat([medoids[:place], medoids[place + 1 :]])
        to_members = self.distance[:, members]
        if len(others):
            # Numbers of the other clusters do not matter, as long as they differ.
            assigned = _assign(self.distance, others)
            rest = self.distance[:, others].amin(1).index_fill(0, others, -1.0)
        else:
            assigned = torch.zeros_like(self.classes)
            rest = self.distance.new_full((self.n,), torch.inf)
        moved = to_members < rest[:, None]
        moved[members, torch.arange(len(members), device=members.device)] = True
        nmi = self._nmi(self._after(assigned, moved))
        score = self.gamma * (1 - nmi) - to_members[members].sum(0)
        medoids[place] = members[score.argmax()]

    def _after(self, assigned: Tensor, moved: Tensor) -> _Moves:
        """Return the sums if ``moved`` (N, M) left their clusters for a new one, by candidate."""
        moved_counts = moved.long()
        stay = 1 - moved_counts
        new_clusters = moved_counts.sum(0, keepdim=True)
        new_cells = self._count(self.classes, moved_counts, self.k)
        clusters = self._count(assigned, stay, self.k)
        cells = self._count(self._cells(assigned), stay, self.n)
        return _Moves(
            self._sum(clusters) + self._sum(new_clusters), self._sum(cells) + self._sum(new_cells)
        )

    def _cells(self, assigned: Tensor) -> Tensor:
        """Return a number below N for each pair of cluster and class: its first image's."""
        key = assigned * self.k + self.classes
        return (key[:, None] == key).to(torch.uint8).argmax(1)

    def _count(self, groups: Tensor, values: Tensor, size: int) -> Tensor:
        return values.new_zeros(size, values.shape[1]).index_add_(0, groups, values)

    def _sum(self, counts: Tensor) -> Tensor:
        return torch.sum(self.n_log_n[counts], 0)

    def _nmi(self, sums: _Moves) -> Tensor:
        log_n = self.n_log_n[-1] / self.n  # H = log n - sum of n_c log n_c / n
        of_clusters = log_n - sums.clusters / self.n
        of_classes = log_n - self.of_classes / self.n
        mutual = of_clusters + of_classes - (log_n - sums.cells / self.n)
        product = of_clusters * of_classes
        none = product < 1e-20  # one cluster or one class: equal if both
        alike = (of_clusters < 1e-10) & (of_classes < 1e-10)
        nmi: Tensor = mutual / torch.where(none, 1, product).sqrt()
        return torch.where(none, alike.double(), nmi)
