"""Embeds a data set by the network of an experiment, and measures what the config requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.base import ImageDataset
from zoo.data.pipeline import evaluation_batches
from zoo.evaluation.items import Array
from zoo.evaluation.measures import Measured, measure
from zoo.evaluation.recall import Recall, recall_at_k
from zoo.progress import Reporter
from zoo.training.experiment import Experiment


def embed(
    experiment: Experiment, dataset: ImageDataset, reporter: Reporter
) -> tuple[Tensor, Tensor]:
    """Return the embeddings (n, d) and the pooled features (n, C) of a data set in its order.

    They are of this process's share of the images. Both are on the device, and computed in float32
    whatever the precision of the training.
    """
    size, share = experiment.config.evaluate.batch_size, experiment.ranks.share(len(dataset))
    batches = evaluation_batches(
        dataset,
        experiment.config.images,
        batch_size=size,
        start=share.start,
        stop=share.stop,
        workers=experiment.workers,
        device=experiment.device,
    )
    embedder = experiment.embedder.eval()
    embeddings, features = [], []
    with torch.inference_mode():
        total = -(-(share.stop - share.start) // size)
        for images in reporter.track(batches, total, "evaluating"):
            pooled = embedder.features(images.to(experiment.device, non_blocking=True))
            features.append(embedder.combined_features(pooled))
            embeddings.append(embedder.combined(embedder.project(pooled)))
    return torch.cat(embeddings), torch.cat(features)


class Evaluation(NamedTuple):
    """What was measured on a data set."""

    recall: Recall  # of the embeddings; if there are several levels, of all together
    of_features: Recall | None  # pooled; None if not requested
    of_levels: dict[str, Recall]  # of each level's embeddings, if there are several
    measured: Measured  # other measures that the config requests


def evaluate(
    experiment: Experiment, reporter: Reporter, dataset: ImageDataset | None = None
) -> Evaluation:
    """Embed a data set, by default the test split, and measure all that the config requests."""
    dataset = experiment.test if dataset is None else dataset
    embeddings, features = embed(experiment, dataset, reporter)
    spec, recall_of = experiment.config.evaluate, measurer(experiment, dataset)
    names = experiment.embedder.level_names
    levels = zip(names, experiment.embedder.levels(embeddings), strict=True)
    return Evaluation(
        recall_of(embeddings),
        recall_of(features) if spec.features else None,
        {name: recall_of(level) for name, level in levels} if len(names) > 1 else {},
        measure(
            spec.measures,
            embeddings,
            _labels(experiment, dataset),
            group=experiment.ranks.group,
            space=experiment.embedder.space,
        ),
    )


def measurer(experiment: Experiment, dataset: ImageDataset) -> Callable[[Tensor], Recall]:
    """Return a function from a data set's embeddings to their Recall@K, as the config sets it."""
    spec = experiment.config.evaluate
    return partial(
        recall_at_k,
        labels=_labels(experiment, dataset),
        ks=spec.ks,
        backend=spec.backend,
        group=experiment.ranks.group,
        space=experiment.embedder.space,
    )


def _labels(experiment: Experiment, dataset: ImageDataset) -> Array:
    """Return the labels of this process's share of the images."""
    labels = np.asarray(dataset.labels)
    return labels[experiment.ranks.share(len(labels))]


def scores(recall: Mapping[int, float]) -> dict[str, float]:
    """Return Recall@K with text as keys, for JSON."""
    return {str(k): score for k, score in recall.items()}
