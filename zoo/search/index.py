"""Search among images: build an index of a folder of images, and find similar images in it.

::

    import zoo

    zoo.index.build("ice_birds", "photographs", "index")
    index = zoo.index.open("index")
    for hit in index.search("query.jpg", k=10)[0]:
        print(hit.rank, hit.cosine, hit.path)

An index is a folder of files: ``meta.json`` (the run, the kind, how it was made, and the names and
digests of the other files), ``index-*.faiss``, and ``names-*.json`` (the paths of the images within
their folder). Kind ivfpq also has ``lists-*.bin`` and ``vectors-*.f16``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.decoding import MAX_PIXELS
from zoo.errors import UserError, did_you_mean, one_of
from zoo.evaluation import faiss, spaces
from zoo.progress import Reporter
from zoo.search.building import IndexJob, in_files, in_memory
from zoo.search.compressed import REFINE, Compressed, check_system
from zoo.search.folder import Meta, check_place, found_at, read
from zoo.search.neighbours import KINDS, Found, Neighbours, Trial, kind_for
from zoo.support.checked import Count, Natural, checked
from zoo.support.text import printable
from zoo.trained.files import embed_named, images_of
from zoo.trained.images import ImageLike, in_a_list
from zoo.trained.network import Trained, load, space_of
from zoo.training.device import choose_device


class Hit(NamedTuple):
    """A neighbour.

    Attributes:
        rank: from 1.
        name: the path of the image within the folder that was indexed.
        path: where the image is.
        cosine: of its embedding and the query's; None for a network with a ``model.space``.
        itself: whether it is the file of the query.
        distance: in the space of the network; None if it has none.
    """

    rank: int
    name: str
    path: Path
    cosine: float | None
    itself: bool
    distance: float | None = None


class Index:
    """A searchable index of images.

    Attributes:
        folder: the folder of the index.
        names: the sorted paths of the images within ``images``.
        images: the folder of the images.
        meta: the content of ``meta.json``.
        trials: for a new approximate index, the parameters that were tried and their recall.
        unreadable: for a new index, the files that were left out, and why.
    """

    def __init__(
        self,
        folder: Path,
        names: list[str],
        neighbours: Neighbours | Compressed,
        meta: Meta,
        model: Trained | None,
        device: str,
    ) -> None:
        self.folder, self.names, self.meta = folder, names, meta
        self.images = found_at(meta.images, folder) or Path(meta.images.path)
        self.trials: list[Trial] = []
        self.unreadable: dict[str, str] = {}
        self._neighbours, self._model, self._device = neighbours, model, device
        self._position = {name: i for i, name in enumerate(names)}
        self._space = None if meta.space is None else space_of(meta.space)

    def __repr__(self) -> str:
        what = f"{len(self):,} images, {self.kind}, {self.meta.embedding_size}-d"
        return printable(f"<Index {self.folder}: {what}, of {self.meta.run.name}>")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def kind(self) -> str:
        """The kind of the index: flat, hnsw, ivf or ivfpq."""
        return self.meta.kind

    @property
    def model(self) -> Trained:
        """The network, which embeds queries too.

        Raises:
            UserError: if its run is missing or has another network now.
        """
        if self._model is None:
            self._model = self._load(None)
        return self._model

    @checked
    def use(self, run: str | Path) -> None:
        """Take the network from a run that was moved.

        Raises:
            UserError: if there is no such run, or the index was made with another network.
        """
        self._model = self._load(run)

    def __contains__(self, path: object) -> bool:
        """Return whether a file is one of the images."""
        if not isinstance(path, str | os.PathLike):
            return False
        return self._position_of(Path(path)) is not None

    @checked
    def search(
        self,
        images: ImageLike | Iterable[ImageLike],
        k: int = 10,
        *,
        exclude_self: bool = False,
    ) -> list[list[Hit]]:
        """Return the images that are most similar to queries, nearest first.

        A flat index gives exactly the nearest, in the order of :mod:`zoo.evaluate`; ties are sorted
        by name.

        Args:
            images: one query or several: paths, PIL images or arrays.
            k: neighbours per query.
            exclude_self: leave out the query itself, recognised by its path. Otherwise it comes
                first, with cosine 1.

        Returns:
            a list for each query; shorter than ``k`` if the index has fewer images or an
            approximate one finds fewer.

        Raises:
            UserError: if an image cannot be read, the run is missing, or ``k`` is below 1.
        """
        given, _ = in_a_list(images)
        found = self.model(given)
        paths = [Path(one) if isinstance(one, str | os.PathLike) else None for one in given]
        return self.search_embeddings(found, k, paths=paths, exclude_self=exclude_self)

    @checked
    def search_embeddings(
        self,
        embeddings: NDArray[np.float32],
        k: int = 10,
        *,
        paths: Sequence[Path | None] | None = None,
        exclude_self: bool = False,
    ) -> list[list[Hit]]:
        """Return the same as :meth:`search` for embeddings (n, d) of the images in ``paths``."""
        if k < 1:
            raise UserError(f"k is {k}; ask for 1 neighbour or more")
        embeddings = np.asarray(embeddings, np.float32)
        if embeddings.ndim != 2 or embeddings.shape[1] != self.meta.embedding_size:
            raise UserError(
                f"embeddings are of shape {embeddings.shape}; the index takes (n, "
                f"{self.meta.embedding_size})"
            )
        if not np.isfinite(embeddings).all():
            raise UserError("embeddings are NaN or infinite")
        own = [self._position_of(path) for path in paths or [None] * len(embeddings)]
        nearness, positions = self._nearest(embeddings, k + exclude_self)
        return [
            self._hits(near, found, mine, k, exclude_self)
            for near, found, mine in zip(nearness, positions, own, strict=True)
        ]

    def _nearest(self, points: NDArray[np.float32], k: int) -> Found:
        """Return the cosines of the nearest, or their distances, and their positions."""
        if self._space is None or self.meta.longest is None:
            return self._neighbours.search(points, k)
        exact = torch.from_numpy(points).double()
        queries = spaces.as_queries(exact, self._space)
        found = self._neighbours.search(queries.numpy(), k)
        cosines = torch.from_numpy(found.cosines)
        distances = spaces.distances_of(cosines, exact, self._space, self.meta.longest)
        return Found(distances.numpy(), found.positions)

    def _hits(
        self, nearness: Any, positions: Any, own: int | None, k: int, exclude_self: bool
    ) -> list[Hit]:
        pairs = [
            (float(near), int(i))
            for near, i in zip(nearness, positions, strict=True)
            if i >= 0 and not (exclude_self and i == own)
        ]
        by_cosine = self._space is None
        return [
            Hit(
                rank,
                self.names[i],
                self.images / self.names[i],
                near if by_cosine else None,
                i == own,
                None if by_cosine else near,
            )
            for rank, (near, i) in enumerate(pairs[:k], 1)
        ]

    def _position_of(self, path: Path | None) -> int | None:
        """Return the position of a file among the images; None if it is not one of them."""
        if path is None:
            return None
        for place in (path.resolve(), Path(os.path.abspath(path))):  # noqa: PTH100 keeps links
            if place.is_relative_to(self.images):
                name = place.relative_to(self.images).as_posix()
                if name in self._position:
                    return self._position[name]
        return None

    def _load(self, run: str | Path | None) -> Trained:
        if run is None:
            run = found_at(self.meta.run, self.folder)
        if run is None:
            missing = printable(f"{self.folder}: its run {self.meta.run.path} is missing")
            raise UserError(f"{missing}; say where it is with --run")
        model = load(run, self._device)
        if model.network_digest() != self.meta.network:
            raise UserError(
                printable(
                    f"{self.folder}: was made with another network than {run} has now, that of "
                    f"{self.meta.run.name} at that time. Give another --run, or build the index "
                    "again with zoo index"
                )
            )
        return model


@checked
def build(
    run: str | Path | Trained,
    images: str | Path,
    folder: str | Path,
    *,
    kind: str = "auto",
    refine: Natural | None = None,
    device: str = "auto",
    batch_size: Count | None = None,
    max_pixels: Count = MAX_PIXELS,
    processes: Count = 1,
    reporter: Reporter | None = None,
) -> Index:
    """Build an index of a folder of images.

    Args:
        run: its folder, its name in ``runs/``, or the network itself.
        images: a folder; images in its subfolders are included.
        folder: the folder of the index. An existing index is replaced.
        kind: "flat" compares with every image, and is exact; "hnsw" walks along a graph; "ivf"
            searches only the nearest clusters; "ivfpq" does so in compressed files, which memory
            need not hold. "auto" is flat up to 100,000 images, then hnsw up to a million, then ivf;
            it is ivfpq if the embeddings do not fit in memory.
        refine: of kind ivfpq, how many candidates are compared by their embeddings, to find ten
            neighbours; by default 200. 0: the embeddings are not kept.
        device: auto, cpu, mps, cuda, or one of several GPUs, such as cuda:0.
        batch_size: images in a batch.
        max_pixels: images with more pixels are skipped.
        processes: that share the embedding of the images.
        reporter: where progress is reported.

    Raises:
        UserError: if the run, the images or FAISS is missing, or the index cannot be written.
    """
    reporter = reporter or Reporter()
    place = Path(folder)
    _check_kind(kind, refine)
    check_place(place)
    faiss.module("an index")
    model = run if isinstance(run, Trained) else load(run, device)
    root, names = images_of(images)
    embed = partial(
        embed_named,
        model,
        root,
        processes=processes,
        batch_size=batch_size,
        max_pixels=max_pixels,
        reporter=reporter,
    )
    job = IndexJob(model, root, names, place, embed, reporter)
    if (kind_for(len(names), model.embedding_size) if kind == "auto" else kind) == "ivfpq":
        made = in_files(job, REFINE if refine is None else refine, max_pixels)
    else:
        made = in_memory(job, kind)
    index = Index(place, made.names, made.neighbours, made.meta, model, device)
    index.trials, index.unreadable = made.trials, made.unreadable
    return index


@checked
def open(
    folder: str | Path,
    *,
    run: str | Path | None = None,
    device: str = "auto",
    verify: bool = False,
) -> Index:
    """Return the index in a folder; its network is loaded when it is first needed.

    Args:
        folder: a folder that :func:`build` or ``zoo index`` wrote.
        run: where its run is now; by default its old path, absolute or relative to the index.
        device: auto, cpu, mps, cuda, or one of several GPUs, such as cuda:0.
        verify: also check the digests of files of more than 1 GiB, of which otherwise only the
            sizes are checked.

    Raises:
        UserError: if the index or the run is missing or damaged, or has another network.
    """
    place = Path(folder)
    meta, names, neighbours = read(place, choose_device(device), verify)
    index = Index(place, names, neighbours, meta, None, device)
    if run is not None:
        index.use(run)
    return index


def _check_kind(kind: str, refine: int | None) -> None:
    known = ("auto", *KINDS)
    if kind not in known:
        raise UserError(f"kind {kind!r}: give {one_of(known)}{did_you_mean(kind, known)}")
    if kind == "ivfpq":
        check_system(faiss.module("an index"))
    elif refine is not None:
        raise UserError(f"refine is {refine}, and is for kind ivfpq only; give --kind ivfpq")
