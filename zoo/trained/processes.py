"""Embedding and measuring by several processes, each with the network and a share of the images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoo.base import Space
from zoo.evaluation.measures import Measured, measure
from zoo.parallel.launch import launch
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.trained import files
from zoo.trained.files import Gathered, Network
from zoo.trained.network import load
from zoo.training.device import check_shared, choose_device


def embed_files(
    processes: int,
    model: Network,
    root: Path,
    names: Sequence[str],
    *,
    batch_size: int | None,
    max_pixels: int,
    reporter: Reporter,
) -> Gathered:
    """Return what :func:`zoo.trained.files.embed_files` returns, embedded by several processes."""
    task = partial(_embed_files, root, names, batch_size, max_pixels)
    parts = launch(processes, task, *_source(model), reporter=reporter)
    return Gathered(
        root,
        [name for part in parts for name in part.names],
        np.concatenate([part.embeddings for part in parts]),
        {name: why for part in parts for name, why in part.unreadable.items()},
    )


def embed_test(processes: int, model: Network, reporter: Reporter) -> NDArray[np.float32]:
    """Return the embeddings (N, d) of the test split, as the run compares them."""
    return np.concatenate(launch(processes, _embed_test, *_source(model), reporter=reporter))


def measure_all(
    processes: int,
    names: Iterable[str],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    space: Space | None,
    reporter: Reporter,
) -> Measured:
    """Return what :func:`zoo.measures.measure` returns, computed by several processes."""
    processes = min(processes, len(labels))
    return launch(processes, _measure, list(names), embeddings, labels, space, reporter=reporter)[0]


def _source(model: Network) -> tuple[Path, str]:
    """Return where another process finds the network, and which device to ask for.

    Raises:
        UserError: that is one GPU of several, which the processes would have to share.
    """
    check_shared(model.requested)
    return model.folder.path.resolve(), model.requested


def _embed_files(
    root: Path,
    names: Sequence[str],
    batch_size: int | None,
    max_pixels: int,
    run: Path,
    device: str,
    ranks: Ranks,
    reporter: Reporter,
) -> Gathered:
    model = load(run, choose_device(device, ranks))
    mine = names[ranks.share(len(names))]
    return files.embed_files(
        model, root, mine, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
    )


def _embed_test(run: Path, device: str, ranks: Ranks, reporter: Reporter) -> NDArray[np.float32]:
    return load(run, choose_device(device, ranks)).embed_share_of_test(ranks, reporter)


def _measure(
    names: list[str],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    space: Space | None,
    ranks: Ranks,
    reporter: Reporter,
) -> Measured:
    mine = ranks.share(len(labels))
    return measure(names, embeddings[mine], labels[mine], group=ranks.group, space=space)
