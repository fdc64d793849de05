"""The gallery and the map of a trained network's test images, or why there are none."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoo.base import ImageDataset
from zoo.errors import FAILURES, UserError
from zoo.progress import Reporter
from zoo.report import gallery, tsne
from zoo.report.collect import ReportedRun
from zoo.report.output import Output
from zoo.report.thumbnails import Thumbnails
from zoo.support.files import read_array

if TYPE_CHECKING:
    from zoo.trained.network import Trained


@dataclass
class Look:
    """The gallery and map of a run, with thumbnails and names of classes.

    Attributes:
        missing: why there is no gallery and no map; None if there are.
        thumbnails: those of its test split.
        names: the names of the classes.
        size: the number of test images.
        queries: the gallery.
        map: data of the map for the page; None if there is none.
        no_map: why there is no map.
    """

    missing: str | None = None
    thumbnails: Thumbnails | None = None
    names: list[str] = field(default_factory=list)
    size: int = 0
    queries: list[gallery.Query] = field(default_factory=list)
    map: dict[str, Any] | None = None
    no_map: str | None = None


class Viewer:
    """Makes the galleries and maps of runs.

    Args:
        output: the report that thumbnails are written to.
        queries: how many a gallery has.
        items: how many images a map has at most; 0 for no map.
    """

    def __init__(self, output: Output, queries: int, items: int) -> None:
        self.output, self.queries, self.items = output, queries, items
        self._thumbnails: dict[str, Thumbnails] = {}

    def look(self, run: ReportedRun) -> Look:
        """Return the gallery and map of a run; errors become the reason why there are none."""
        if run.result is None:
            return Look("The run has no result, so there is no network to search with.")
        if not (self.queries or self.items):
            return Look("Neither was asked for.")
        try:
            return self._look(run)
        except FAILURES as error:  # a plugin's network or data set may raise anything
            return Look(_reason(run, error))

    def _look(self, run: ReportedRun) -> Look:
        from zoo.trained.network import load

        ranks = run.folder.ranks()
        trained = load(str(run.folder.path))
        embeddings, labels = trained.embed_test(Reporter(quiet=True))
        if len(ranks) != len(labels):
            raise UserError(f"ranks.npy has {len(ranks)} queries, the test split has {len(labels)}")
        thumbnails = self._thumbnails_of(trained)
        found = Look(thumbnails=thumbnails, size=len(labels))
        found.names = [str(name) for name in thumbnails.dataset.class_names]
        found.queries = gallery.gallery(embeddings, labels, ranks, self.queries, trained.space)
        thumbnails.make(gallery.images(found.queries))
        try:
            if self.items:
                found.map = self._map(
                    tsne.vectors(embeddings, trained.space), labels, ranks, thumbnails
                )
        except UserError as error:
            found.no_map = str(error)
        return found

    def _thumbnails_of(self, trained: Trained) -> Thumbnails:
        key = json.dumps(trained.config.dataset.model_dump(), sort_keys=True, default=str)
        if key not in self._thumbnails:
            dataset: ImageDataset = trained.test_split()
            self._thumbnails[key] = Thumbnails(dataset, self.output)
        return self._thumbnails[key]

    def _map(
        self,
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
        ranks: NDArray[np.int32],
        thumbnails: Thumbnails,
    ) -> dict[str, Any]:
        """Return the data that tsne.js draws."""
        chosen = tsne.sample(labels, self.items)
        places = self._places(embeddings[chosen])
        thumbnails.make(chosen.tolist())
        classes, own = np.unique(labels[chosen], return_inverse=True)
        names = thumbnails.dataset.class_names
        return {
            "x": places[:, 0].round(3).tolist(),
            "y": places[:, 1].round(3).tolist(),
            "index": chosen.tolist(),
            "rank": ranks[chosen].tolist(),
            "label": own.tolist(),
            "names": [str(names[label]) for label in classes.tolist()],
            "folder": f"../{thumbnails.folder}/",
            "suffix": thumbnails.suffix,
        }

    def _places(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the map of embeddings, from an earlier report if it has it."""
        key = hashlib.sha256(np.ascontiguousarray(embeddings).tobytes())
        name = f"cache/tsne-{key.hexdigest()[:16]}.npy"
        if self.output.has(name):
            try:
                places: NDArray[np.float32] = read_array(self.output.root / name)
                if places.shape == (len(embeddings), 2) and np.isfinite(places).all():
                    self.output.claim([name])
                    return places
            except Exception:  # noqa: BLE001 NumPy may raise anything if a file is damaged
                pass
        places = tsne.project(embeddings)
        buffer = io.BytesIO()
        np.save(buffer, places)
        self.output.write(name, buffer.getvalue())
        return places


def _reason(run: ReportedRun, error: BaseException) -> str:
    """Return why there is no gallery; runs with the same fault get the same text."""
    if isinstance(error, UserError):
        place = str(run.folder.path)
        return str(error).replace(f"{place}: ", "The folder of the run ").replace(f"{place}/", "")
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
