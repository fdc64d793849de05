"""Build an index of a folder of images: with all embeddings in memory, or in files part by part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo import __version__
from zoo.errors import UserError
from zoo.evaluation import spaces
from zoo.progress import Reporter
from zoo.search import compressing, parts
from zoo.search.compressed import Compressed
from zoo.search.folder import (
    About,
    Meta,
    OpenedFolder,
    SourceRun,
    file_of,
    finish,
    place_of,
    replacing,
    write,
)
from zoo.search.neighbours import Neighbours, Trial, kind_for, unit
from zoo.support.files import open_regular, replace_file, writing
from zoo.trained.files import Gathered, check_any, report_unreadable
from zoo.trained.network import Trained


class IndexJob(NamedTuple):
    """What is to be built.

    Attributes:
        model: the network.
        root: the folder of the images.
        names: the images within it.
        place: the folder of the index.
        embed: returns the embeddings of some of the images.
        reporter: where progress is reported.
    """

    model: Trained
    root: Path
    names: list[str]
    place: Path
    embed: Callable[[list[str]], Gathered]
    reporter: Reporter


class Made(NamedTuple):
    """An index that is written, and what was found while it was built."""

    names: list[str]
    unreadable: dict[str, str]
    neighbours: Neighbours | Compressed
    meta: Meta
    trials: list[Trial]


def in_memory(job: IndexJob, kind: str) -> Made:
    """Embed all images, and build an index of them."""
    found = job.embed(job.names)
    check_any(job.root, found.names, found.unreadable)
    report_unreadable(found, job.reporter)
    count, size = found.embeddings.shape
    chosen: Any = kind_for(count, size) if kind == "auto" else kind
    job.reporter.say(f"indexing  {count:,} images, {chosen}")
    about_space, vectors = _in_space(found.embeddings, job.model)
    neighbours = Neighbours.of(vectors, chosen, job.model.device, job.reporter)
    trials = neighbours.tune(vectors)
    about = _describe(job, neighbours, trials, **about_space)
    meta = write(job.place, found.names, neighbours, about, job.reporter)
    return Made(found.names, found.unreadable, neighbours, meta, trials)


def in_files(job: IndexJob, refine: int, max_pixels: int) -> Made:
    """Embed the images part by part into a file, and build an index in files.

    Without ``refine``, the file of embeddings is removed in the end.
    """
    place, size = job.place, job.model.embedding_size
    if job.model.space is not None:
        raise UserError(
            "an index of kind ivfpq compares by cosines, and this network has a model.space; "
            "give --kind hnsw or ivf"
        )
    compressing.check_enough(len(job.names))
    needed = parts.bytes_on_disk(len(job.names), size)
    parts.check_room(place, needed + compressing.bytes_on_disk(len(job.names), size))
    depends = json.dumps([job.model.network_digest(), max_pixels, str(job.root)])
    made_by = hashlib.sha256(depends.encode()).hexdigest()
    with replacing(place, job.reporter):
        found = parts.embed_in_parts(
            place, job.root, job.names, size, made_by, job.embed, job.reporter
        )
        check_any(job.root, found.names, found.unreadable)
        report_unreadable(found, job.reporter)
        job.reporter.say(f"indexing  {len(found.names):,} images, ivfpq")
        files = _compress(place, found.file, size, job.reporter)
        vectors = parts.vectors_in(found.file, size)
        with open_regular(files["index"]) as index, open_regular(files["lists"]) as lists:
            neighbours = Compressed.read(index, lists, vectors if refine else None, refine)
        trials = neighbours.tune(vectors)
        if refine:
            files["vectors"] = found.file
        meta = finish(place, found.names, _describe(job, neighbours, trials), files, {})
    return Made(found.names, found.unreadable, neighbours, meta, trials)


def _compress(place: Path, file: Path, size: int, reporter: Reporter) -> dict[str, Path]:
    """Write index and lists of the vectors in a file; return where they are."""
    vectors = parts.vectors_in(file, size)
    index = compressing.trained(vectors)
    files = {key: file_of(place, key) for key in ("index", "lists")}
    sizes: list[Any] = []
    with writing(place):
        replace_file(
            files["lists"],
            lambda file: sizes.append(
                compressing.write_lists(index, vectors, file, place, reporter)
            ),
        )
        replace_file(files["index"], lambda file: compressing.write_index(index, sizes[0], file))
    return files


def _in_space(
    points: NDArray[np.float32], model: Trained
) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Return what an index says of the network's space, and the vectors (N, k) that it holds."""
    spec = model.config.model.space
    if model.space is None or spec is None:
        return {}, points
    exact = torch.from_numpy(points).double()
    longest = spaces.longest_of(exact, model.space)
    vectors = unit(spaces.as_gallery(exact, model.space, longest).numpy())
    about = {"metric": "distance", "space": spec.model_dump(), "longest": longest}
    return {**about, "vector_size": vectors.shape[1]}, vectors


def _describe(
    job: IndexJob,
    neighbours: Neighbours | Compressed,
    trials: Sequence[Trial],
    **more: Any,
) -> About:
    run = job.model.folder.path.resolve()
    return About(
        version=__version__,
        kind=neighbours.kind,
        embedding_size=job.model.embedding_size,
        count=neighbours.count,
        images=OpenedFolder(**place_of(job.root, job.place)),
        run=SourceRun(**place_of(run, job.place), name=run.name, digest=job.model.config.digest()),
        network=job.model.network_digest(),
        parameter=neighbours.parameter,
        value=neighbours.value,
        recall_at_10=trials[-1].recall if trials else None,
        refine=neighbours.refine if isinstance(neighbours, Compressed) else 0,
        **more,
    )
