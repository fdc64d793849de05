"""More measures: MAP@R and R-precision of retrieval, NMI and AMI of clusters.

Retrieval follows the rules of :mod:`zoo.evaluate`: the cosine in double precision, the query left
out by its index, ties against the query. MAP@R and R-precision are exact. NMI and AMI are exact for
a given clustering, but k-means depends on its initial centres: see :func:`clusters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from zoo.base import Space
from zoo.errors import UserError
from zoo.evaluation.at_r import at_r
from zoo.evaluation.clusters import clusters
from zoo.evaluation.items import Array, check_items, check_labels
from zoo.evaluation.names import CLUSTERING, check_measures
from zoo.evaluation.shards import kinds_of
from zoo.parallel.ranks import Ranks
from zoo.support.checked import checked


class Measured(NamedTuple):
    """Values by name, and how the items were clustered, if they were."""

    values: dict[str, float]
    clustering: dict[str, Any] | None


@checked
def measure(
    names: Iterable[str],
    embeddings: Array,
    labels: Array,
    *,
    group: dist.ProcessGroup | None = None,
    space: Space | None = None,
) -> Measured:
    """Return the measures of these names; shared steps are computed once.

    Args:
        names: of map_at_r, r_precision, nmi and ami.
        embeddings: (n, d) of any float type; they need not be normalised.
        labels: (n,) their classes, of any integer type and value.
        group: the processes of ``torch.distributed`` that share the work: each calls this with its
            own part of the items. Only the first of them clusters, for NMI and AMI, all items.
        space: in which items are compared; by default by cosines, which NMI and AMI need.

    Raises:
        UserError: a name is unknown; shapes or types do not match; an embedding is not finite.
    """
    names = check_measures(names)
    if space is not None and set(CLUSTERING) & set(names):
        raise UserError("nmi and ami cluster by cosines: leave them out, or set model.space=null")
    values: dict[str, float] = {}
    how = None
    if {"map_at_r", "r_precision"} & set(names):
        found = at_r(embeddings, labels, group=group, space=space)
        values["map_at_r"] = float(found.average_precision.mean())
        values["r_precision"] = float(found.precision.mean())
    scores = {name: score for name, score in (("nmi", nmi), ("ami", ami)) if name in names}
    if scores:
        ranks = Ranks(group)
        checked_items = partial(check_items, embeddings, labels)
        vectors, classes = ranks.together(checked_items, lambda items: kinds_of([items]))
        counts = ranks.gather_counts(len(vectors))
        everything = ranks.gather(vectors, counts), ranks.gather_labels(classes, counts)
        how, of_clusters = ranks.from_first(partial(_of_clusters, scores, *everything))
        values |= of_clusters
    return Measured({name: values[name] for name in names}, how)


def _of_clusters(
    scores: Mapping[str, Callable[[Array, Array], float]], vectors: Tensor, classes: Tensor
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return how the items were clustered, and scores of their clusters."""
    grouped = clusters(vectors, classes)
    return grouped.how, {name: score(classes, grouped.of) for name, score in scores.items()}


@checked
def map_at_r(embeddings: Array, labels: Array) -> float:
    """Return MAP@R, the mean over queries of

        1/R sum over i = 1 ... R of [the i-th nearest is right] (share of right ones up to the i-th)

    where R is the number of other items of the query's class. It rewards right items that come
    early, and is 1 only if each query's class comes before all others.

    Source: Musgrave, Belongie and Lim 2020, A Metric Learning Reality Check, section 3.2.
    """
    return measure(["map_at_r"], embeddings, labels).values["map_at_r"]


@checked
def r_precision(embeddings: Array, labels: Array) -> float:
    """Return R-precision: the mean share of the R nearest that are right.

    R is the number of other items of the query's class.

    Source: Musgrave, Belongie and Lim 2020, A Metric Learning Reality Check, section 3.2.
    """
    return measure(["r_precision"], embeddings, labels).values["r_precision"]


@checked
def nmi(labels: Array, clusters: Array) -> float:
    """Return the normalised mutual information, 2 I(labels; clusters) / (H(labels) + H(clusters)).

    It is 1 if the clusters are the classes, but well above 0 for random clusters if there are many:
    "not a good assessment for SOP", whose classes have 5.3 images on average, says the ICE paper
    after Law et al. 2017. AMI is corrected for chance.

    Source: Manning, Raghavan and Schütze 2008, Introduction to Information Retrieval, section 16.3.
    """
    from sklearn import metrics

    return float(metrics.normalized_mutual_info_score(*_pair(labels, clusters)))


@checked
def ami(labels: Array, clusters: Array) -> float:
    """Return the adjusted mutual information, (I - E[I]) / ((H(labels) + H(clusters)) / 2 - E[I]).

    E[I] is the expectation for random clusters of the same sizes, so that these have 0 on average.

    Source: Vinh, Epps and Bailey 2010, Information theoretic measures for clusterings comparison,
    JMLR 11.
    """
    from sklearn import metrics

    return float(metrics.adjusted_mutual_info_score(*_pair(labels, clusters)))


def _pair(labels: Array, clusters: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the checked class and cluster of each item."""
    classes, groups = check_labels(labels), check_labels(clusters, "clusters")
    if len(classes) != len(groups) or not len(classes):
        raise UserError(f"{len(classes)} labels do not match {len(groups)} clusters")
    return classes, groups
