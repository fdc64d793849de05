"""Search among images: a folder of them becomes an index, and images find their neighbours in it.

::

    import zoo

    zoo.index.build("ice_birds", "photographs", "index")
    index = zoo.index.open("index")
    for hit in index.search("query.jpg", k=10)[0]:
        print(hit.rank, hit.cosine, hit.path)

An index is a folder of three files: ``meta.json`` (which run, which kind, how it was made, and the
names and digests of the two others), ``index-*.faiss``, and ``names-*.json`` (the images, as paths
from the folder that they are in).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo import __version__
from zoo.data.decoding import MAX_PIXELS
from zoo.errors import UserError, did_you_mean, one_of
from zoo.evaluation import faiss
from zoo.progress import Reporter
from zoo.search.folder import (
    About,
    Meta,
    OpenedFolder,
    SourceRun,
    check_place,
    found_at,
    place_of,
    read,
    write,
)
from zoo.search.neighbours import KINDS, Kind, Neighbours, Trial, kind_for
from zoo.support.checked import Count, checked
from zoo.support.text import printable
from zoo.trained.files import embed_folder, report_unreadable
from zoo.trained.images import ImageLike, in_a_list
from zoo.trained.network import Trained, load
from zoo.training.device import choose_device


class Hit(NamedTuple):
    """A neighbour.

    Attributes:
        rank: from 1.
        name: the image, as a path from the folder that was indexed.
        path: where it was then.
        cosine: of its embedding and the query's.
        itself: whether it is the very file that was searched with.
    """

    rank: int
    name: str
    path: Path
    cosine: float
    itself: bool


class Index:
    """Images that can be searched among.

    Attributes:
        folder: of the index.
        names: the images, as paths from ``images``, sorted.
        images: the folder that they were in.
        meta: what is known of the index.
        trials: of a new approximate index, the parameters tried and what each finds.
        unreadable: of a new index, the files that were left out, and why.
    """

    def __init__(
        self,
        folder: Path,
        names: list[str],
        neighbours: Neighbours,
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

    def __repr__(self) -> str:
        what = f"{len(self):,} images, {self.kind}, {self.meta.embedding_size}-d"
        return printable(f"<Index {self.folder}: {what}, of {self.meta.run.name}>")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def kind(self) -> str:
        """The kind of the index: flat, hnsw or ivf."""
        return self.meta.kind

    @property
    def model(self) -> Trained:
        """The network, which queries go through as well.

        Raises:
            UserError: its run is not there any more, or its network is another.
        """
        if self._model is None:
            self._model = self._load(None)
        return self._model

    @checked
    def use(self, run: str | Path) -> None:
        """Take the network from a run, wherever it is now.

        Raises:
            UserError: there is no such run, or its network is another than the index was made with.
        """
        self._model = self._load(run)

    def __contains__(self, path: object) -> bool:
        """Tell whether a file is one of the images."""
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
        """Return the images that look most like others, nearest first.

        With a flat index these are exactly the nearest, in the order that :mod:`zoo.evaluate`
        counts by; equal ones come by name.

        Args:
            images: as a trained network takes them: paths, PIL images or arrays; one or several.
            k: how many for each.
            exclude_self: leave out the file that is searched with, known by its path. Without, it
                comes first, with cosine 1.

        Returns:
            a list for each image; shorter than ``k`` where the index has no more, or where an
            approximate one does not find them.

        Raises:
            UserError: an image cannot be read, the run is not there any more, or ``k`` is below 1.
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
        """Return the same for embeddings (n, d), of any length, of the images in ``paths``."""
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
        found = self._neighbours.search(embeddings, k + exclude_self)
        return [
            self._hits(cosines, positions, mine, k, exclude_self)
            for cosines, positions, mine in zip(*found, own, strict=True)
        ]

    def _hits(
        self, cosines: Any, positions: Any, own: int | None, k: int, exclude_self: bool
    ) -> list[Hit]:
        pairs = [
            (float(cosine), int(i))
            for cosine, i in zip(cosines, positions, strict=True)
            if i >= 0 and not (exclude_self and i == own)
        ]
        return [
            Hit(rank, self.names[i], self.images / self.names[i], cosine, i == own)
            for rank, (cosine, i) in enumerate(pairs[:k], 1)
        ]

    def _position_of(self, path: Path | None) -> int | None:
        """Return which of the images a file is; None if it is none of them."""
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
            gone = printable(f"{self.folder}: its run {self.meta.run.path} is not there any more")
            raise UserError(f"{gone}; say where it is with --run")
        model = load(run, self._device)
        if model.network_digest() != self.meta.network:
            raise UserError(
                printable(
                    f"{self.folder}: was made with another network than {run} has now, so nothing "
                    f"can be compared; it was that of {self.meta.run.name}, as it was then. Give "
                    "--run, or build the index again with zoo index"
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
    device: str = "auto",
    batch_size: Count | None = None,
    max_pixels: Count = MAX_PIXELS,
    reporter: Reporter | None = None,
) -> Index:
    """Index a folder of images: embed all of them, and make of that what can be searched.

    Args:
        run: its folder, its name in ``runs/``, or the network itself.
        images: a folder; images in folders of it count as well.
        folder: where the index goes. An index that is there is replaced.
        kind: "flat" compares with every image, and is exact; "hnsw" walks along a graph; "ivf"
            looks into the nearest clusters only. "auto" is flat up to 100,000 images, then hnsw up
            to a million, then ivf.
        device: auto, cpu, mps, cuda, or one GPU of several as cuda:0.
        batch_size: images at a time.
        max_pixels: larger images are left out.
        reporter: where progress is told.

    Raises:
        UserError: no such run or folder, no image that can be read, nowhere to write, no FAISS.
    """
    reporter = reporter or Reporter()
    place = Path(folder)
    _check_kind(kind)
    check_place(place)
    faiss.module("an index")
    model = run if isinstance(run, Trained) else load(run, device)
    found = embed_folder(
        model, images, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
    )
    report_unreadable(found, reporter)
    chosen: Kind = kind_for(len(found.names)) if kind == "auto" else kind  # type: ignore[assignment]
    reporter.say(f"indexing  {len(found.names):,} images, {chosen}")
    neighbours = Neighbours.of(found.embeddings, chosen, model.device, reporter)
    trials = neighbours.tune(found.embeddings)
    about = _describe(model, found.root, place, neighbours, trials)
    meta = write(place, found.names, neighbours, about, reporter)
    index = Index(place, found.names, neighbours, meta, model, device)
    index.trials, index.unreadable = trials, found.unreadable
    return index


@checked
def open(folder: str | Path, *, run: str | Path | None = None, device: str = "auto") -> Index:
    """Return the index in a folder; its network is loaded when it is first needed.

    Args:
        folder: that :func:`build` or ``zoo index`` made.
        run: where its run is now; by default where it was, or in the same place as seen from the
            index.
        device: auto, cpu, mps, cuda, or one GPU of several as cuda:0.

    Raises:
        UserError: there is no index, or it is damaged; no such run, or with another network.
    """
    place = Path(folder)
    meta, names, neighbours = read(place, choose_device(device))
    index = Index(place, names, neighbours, meta, None, device)
    if run is not None:
        index.use(run)
    return index


def _check_kind(kind: str) -> None:
    known = ("auto", *KINDS)
    if kind not in known:
        raise UserError(f"kind {kind!r}: give {one_of(known)}{did_you_mean(kind, known)}")


def _describe(
    model: Trained, images: Path, place: Path, neighbours: Neighbours, trials: Sequence[Trial]
) -> About:
    run = model.folder.path.resolve()
    return About(
        version=__version__,
        kind=neighbours.kind,
        embedding_size=neighbours.size,
        count=neighbours.count,
        images=OpenedFolder(**place_of(images, place)),
        run=SourceRun(**place_of(run, place), name=run.name, digest=model.config.digest()),
        network=model.network_digest(),
        parameter=neighbours.parameter,
        value=neighbours.value,
        recall_at_10=trials[-1].recall if trials else None,
    )
