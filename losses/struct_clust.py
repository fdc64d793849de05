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

    Each greedy step rates all candidates at once, by the images that each of them would take from
    the medoids so far. These become fewer with each step, so that the search takes O(K N²) at most,
    and about N² log K in all.

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


class _Nearest(NamedTuple):
    """The positions of the two medoids nearest to each image, and their distances: (N,) each.

    A medoid is nearest to itself, at -1, so that it stays where it is.
    """

    first: Tensor
    second: Tensor
    to_first: Tensor
    to_second: Tensor

    @classmethod
    def of(cls, distance: Tensor, medoids: Tensor) -> _Nearest:
        """Return those among at least two medoids."""
        to_medoids = distance[:, medoids]
        to_medoids[medoids, torch.arange(len(medoids), device=medoids.device)] = -1.0
        to_first, first = to_medoids.min(1)
        to_second, second = to_medoids.scatter_(1, first[:, None], torch.inf).min(1)
        return cls(first, second, to_first, to_second)

    def without(self, place: int) -> tuple[Tensor, Tensor]:
        """Return each image's nearest among the other medoids, and its distance."""
        gone = self.first == place
        nearest = torch.where(gone, self.second, self.first)
        return nearest, torch.where(gone, self.to_second, self.to_first)


class _Sums(NamedTuple):
    """Sums of n log n for some candidates, over the counts that there would be: (C,) each."""

    clusters: Tensor
    cells: Tensor  # a cell is what a cluster and a class have in common


class _Moves(NamedTuple):
    """Pairs (image, candidate): the images that a candidate would take from their clusters."""

    image: Tensor
    candidate: Tensor
    candidates: int

    @classmethod
    def where(cls, moved: Tensor) -> _Moves:
        """Return the pairs at which a mask (N, C) is true."""
        image, candidate = moved.nonzero(as_tuple=True)
        return cls(image, candidate, moved.shape[1])

    def only(self, which: Tensor) -> _Moves:
        """Return the pairs with the given numbers."""
        return self._replace(image=self.image[which], candidate=self.candidate[which])

    def added(self, shares: Tensor) -> Tensor:
        """Return the sum (C,) of what the pairs of each candidate add."""
        return shares.new_zeros(self.candidates).index_add_(0, self.candidate, shares)


class _Search:
    """Searches for the medoids that violate the loss most, in float64 and without a graph.

    NMI depends only on sums of n log n over the sizes n of clusters, of classes, and of their
    intersections, which are read from a table. A candidate changes only the sizes at images that it
    would take, which become few as medoids become many: sums are changed by these alone.
    """

    def __init__(self, distance: Tensor, classes: Tensor, gamma: float) -> None:
        self.distance, self.classes, self.gamma = distance, classes, gamma
        self.n = len(distance)
        counts = torch.bincount(classes)
        self.k = len(counts)
        numbers = torch.arange(self.n + 1, dtype=torch.float64, device=distance.device)
        self.log_n, self.n_log_n = numbers.log(), torch.special.xlogy(numbers, numbers)
        self.of_classes = self.n_log_n[counts].sum()
        self._counted = torch.zeros(self.n * self.n, dtype=torch.long, device=distance.device)
        self._one = torch.ones_like(self._counted[:1])

    def greedy(self) -> Tensor:
        """Return K medoids, each the best addition to those before it."""
        chosen = self.distance.sum(0).argmin()  # any first medoid has all images in its cluster
        nearest = self.distance[:, chosen]
        assigned = torch.zeros_like(self.classes)
        itself = torch.arange(self.n, device=chosen.device)
        taken = torch.zeros_like(self.classes, dtype=torch.bool)
        medoids = [chosen]
        moves = _Moves.where((self.distance < nearest[:, None]).fill_diagonal_(True))
        distance = self.distance[moves.image, moves.candidate]
        for step in range(1, self.k):
            taken[chosen] = True
            less = moves.added(nearest[moves.image] - distance)
            score = self.gamma * (1 - self._nmi(self._after(assigned, moves))) + less
            chosen = score.masked_fill_(taken, -torch.inf).argmax()
            moved = (self.distance[:, chosen] < nearest) | (itself == chosen)
            assigned = assigned.masked_fill(moved, step)
            nearest = torch.where(moved, self.distance[:, chosen], nearest)
            medoids.append(chosen)
            kept = (distance < nearest[moves.image]) | (moves.image == moves.candidate)
            which = kept.nonzero().squeeze(1)
            distance, moves = distance[which], moves.only(which)
        return torch.stack(medoids)

    def sweep(self, medoids: Tensor, sweeps: int) -> Tensor:
        """Return the medoids after swaps with members of their clusters."""
        medoids = medoids.clone()
        for _ in range(sweeps if self.k > 1 else 0):
            before = medoids.clone()
            nearest = _Nearest.of(self.distance, medoids)
            sizes = torch.bincount(nearest.first, minlength=self.k).tolist()
            clusters = torch.split(nearest.first.argsort(stable=True), sizes)
            for place, members in enumerate(clusters):
                if len(members) == 1:
                    continue
                chosen = self._best(nearest, place, members)
                if chosen != medoids[place]:
                    medoids[place] = chosen
                    nearest = _Nearest.of(self.distance, medoids)
            if torch.equal(before, medoids):
                break
        return medoids

    def nmi(self, assigned: Tensor) -> Tensor:
        """Return the normalised mutual information of an assignment and the classes."""
        nobody = torch.zeros_like(assigned, dtype=torch.bool)[:, None]
        return self._nmi(self._after(assigned, _Moves.where(nobody)))[0]

    def _best(self, nearest: _Nearest, place: int, members: Tensor) -> Tensor:
        """Return the best of the members of a cluster as its medoid."""
        assigned, rest = nearest.without(place)
        to_members = self.distance[:, members]
        moved = to_members < rest[:, None]
        moved[members, torch.arange(len(members), device=members.device)] = True
        nmi = self._nmi(self._after(assigned, _Moves.where(moved)))
        score = self.gamma * (1 - nmi) - to_members[members].sum(0)
        return members[score.argmax()]

    def _after(self, assigned: Tensor, moves: _Moves) -> _Sums:
        """Return the sums if images left their clusters for a new one, by candidate."""
        size = torch.bincount(moves.candidate, minlength=moves.candidates)
        cells = torch.unique(assigned * self.k + self.classes, return_inverse=True)[1]
        return _Sums(
            self._without(assigned, moves) + self.n_log_n[size],
            self._without(cells, moves) + self._within(self.classes, moves),
        )

    def _without(self, groups: Tensor, moves: _Moves) -> Tensor:
        """Return the sum of n log n over groups that the images have left, by candidate."""
        size = torch.bincount(groups)
        left, before = self._together(groups, moves), size[groups][moves.image]
        change = (self.n_log_n[before - left] - self.n_log_n[before]) / left  # the share of each
        return moves.added(change).add_(self.n_log_n[size].sum())

    def _within(self, groups: Tensor, moves: _Moves) -> Tensor:
        """Return the sum of n log n over the groups of the images that move, by candidate."""
        return moves.added(self.log_n[self._together(groups, moves)])

    def _together(self, groups: Tensor, moves: _Moves) -> Tensor:
        """Return for each pair how many have its candidate, and an image of its group."""
        key = (groups * moves.candidates)[moves.image] + moves.candidate
        self._counted.index_add_(0, key, self._one.expand(len(key)))
        together: Tensor = self._counted[key]
        self._counted[key] = 0
        return together

    def _nmi(self, sums: _Sums) -> Tensor:
        log_n = self.n_log_n[-1] / self.n  # H = log n - sum of n_c log n_c / n
        of_clusters = log_n - sums.clusters / self.n
        of_classes = log_n - self.of_classes / self.n
        mutual = of_clusters + of_classes - (log_n - sums.cells / self.n)
        product = of_clusters * of_classes
        none = product < 1e-20  # one cluster or one class: equal if both
        alike = (of_clusters < 1e-10) & (of_classes < 1e-10)
        nmi: Tensor = mutual / torch.where(none, 1, product).sqrt()
        return torch.where(none, alike.double(), nmi)
