"""A trained network in use: load it from the folder of a run, and embed images."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.base import ImageDataset, Space
from zoo.config.build import build
from zoo.config.schema import ComponentSpec, Config, numbers_alike
from zoo.data import splits
from zoo.data.decoding import MAX_PIXELS
from zoo.data.pipeline import evaluation_batches
from zoo.errors import UserError
from zoo.network.embedder import Embedder
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.runs.folder import CONFIG, EMBEDDINGS, RunFolder
from zoo.runs.plugins import check_there
from zoo.support.checked import Count, Workers, checked
from zoo.support.files import check_stored
from zoo.support.text import printable
from zoo.trained import files
from zoo.trained.files import Gathered
from zoo.trained.images import GivenImages, ImageLike, in_a_list
from zoo.training import experiment
from zoo.training.device import choose_device


class Embedded(NamedTuple):
    """The embeddings of the test split.

    Attributes:
        embeddings: float32 (N, d), as the run compares them; their lengths differ.
        labels: int64 (N,).
    """

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]


class Trained:
    """The network of a run: a callable from images to embeddings.

    Attributes:
        folder: of the run.
        config: what it was trained with.
        embedder: the network, in evaluation mode.
        device: where it computes.
        requested: the device as it was asked for, which may be ``auto``.
        embedding_size: d, the number of values in what it gives for an image: an embedding, or a
            point of the space.
    """

    def __init__(
        self, folder: RunFolder, config: Config, embedder: Embedder, requested: str = "auto"
    ) -> None:
        self.requested = requested
        self.folder, self.config, self.embedder = folder, config, embedder.eval()
        self.device = next(embedder.buffers()).device
        self.embedding_size = embedder.search_size
        self.space = embedder.space

    def __repr__(self) -> str:
        network = f"{self.config.model.backbone.name}, {self.embedding_size}-d, on {self.device}"
        return printable(f"<Trained {self.folder.path.resolve().name}: {network}>")

    @checked
    def __call__(
        self,
        images: ImageLike | Iterable[ImageLike] | NDArray[np.uint8],
        *,
        batch_size: Count | None = None,
        workers: Workers = 0,
        max_pixels: Count = MAX_PIXELS,
        reporter: Reporter | None = None,
    ) -> NDArray[np.float32]:
        """Return the embeddings of images: of length 1, so that a dot product is the cosine.

        If the run has a ``model.space``, they are points of it (``self.space``), whose distances
        are compared instead.

        Images are prepared like those of the test split: scaled, cropped at the centre, and
        normalised for the backbone.

        Args:
            images: paths of image files of any kind, PIL images, or uint8 arrays (H, W, 3) in RGB
                or (H, W) in gray, each of any size; one of these, or any number of them, in a list,
                from a generator, or as one array (N, H, W, 3).
            batch_size: images at a time; by default as many as for the test.
            workers: processes that read images.
            max_pixels: larger images are refused, as a small file can take all of the memory.
            reporter: shows progress; by default nothing does.

        Returns:
            float32 (N, d); (d,) for a single image.

        Raises:
            UserError: if an image cannot be read, or is not an image.
        """
        listed, single = in_a_list(images)
        given = GivenImages(listed, max_pixels)
        if not len(given):
            return np.empty((0, self.embedding_size), np.float32)
        found = self._embed(given, workers, reporter or Reporter(quiet=True), batch_size)
        points = self._points(found)
        return points[0] if single else points

    @checked
    def embed_folder(
        self,
        folder: str | Path,
        *,
        batch_size: Count | None = None,
        max_pixels: Count = MAX_PIXELS,
        processes: Count = 1,
        reporter: Reporter | None = None,
    ) -> Gathered:
        """Return the embeddings of all images in a folder and in its folders, by name.

        As in a data set, a file counts as an image if its name ends like one, it is not hidden, and
        it is not a link out of the folder. Files that cannot be read are left out.

        Args:
            folder: names are paths within it, with ``/``, sorted.
            batch_size: images at a time; by default as many as for the test.
            max_pixels: larger images are left out, as a small file can take all of the memory.
            processes: that share the images; each loads the network, on a GPU of its own if the
                network is on one.
            reporter: shows progress; by default on stderr.

        Raises:
            UserError: if the folder does not exist, or no image in it can be read.
        """
        return files.embed_folder(
            self,
            folder,
            batch_size=batch_size,
            max_pixels=max_pixels,
            processes=processes,
            reporter=reporter,
        )

    @checked
    @torch.inference_mode()
    def embed_pixels(self, pixels: torch.Tensor) -> NDArray[np.float32]:
        """Return the embeddings, as a call does, of images that are already scaled and cropped.

        Args:
            pixels: uint8 (N, 3, H, W) in RGB, or (N, 1, H, W) in gray.

        Raises:
            UserError: if they are something else.
        """
        if pixels.ndim != 4 or pixels.dtype != torch.uint8 or pixels.shape[1] not in (1, 3):
            raise UserError(
                f"pixels are {str(pixels.dtype).removeprefix('torch.')} of shape "
                f"{tuple(pixels.shape)}; they must be uint8 (N, 3, H, W) in RGB or (N, 1, H, W)"
            )
        return self._points(self._as_searched(pixels))

    def network_digest(self) -> str:
        """Return a digest of everything that an embedding depends on: weights and preparation.

        Embeddings of networks with the same digest can be compared.
        """
        images, model = self.config.images, self.config.model
        preparation: list[Any] = [images.resize, images.keep_aspect, images.crop, model.pooling]
        if model.norm != "none":
            preparation.append(model.norm)
        if model.space is not None:
            preparation.append(repr(numbers_alike(model.space.model_dump())))
        whole = hashlib.sha256(repr((preparation, self.embedder.backbone.preprocess)).encode())
        for name, value in sorted(self.embedder.state_dict().items()):
            whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            whole.update(value.cpu().contiguous().numpy().tobytes())
        return whole.hexdigest()[:16]

    def test_split(self) -> ImageDataset:
        """Return the images that the run was tested on.

        Raises:
            UserError: if the images, or the plugin that reads them, are missing.
        """
        check_there(self.folder, "datasets", self.config.dataset.name)
        return splits.build_dataset(self.config, "test")

    @checked
    def embed_test(self, reporter: Reporter | None = None, *, processes: Count = 1) -> Embedded:
        """Return the embeddings of the test split, with which the run was measured.

        They are read from the run's folder, or computed, by several processes if asked for, and
        saved there.

        Raises:
            UserError: if the images are missing or have changed.
        """
        reporter = reporter or Reporter()
        plain = self.test_split()
        self._check_same(plain)
        (dataset,) = splits.decoded(self.config, [plain], reporter)
        key = f"{dataset.fingerprint()} {self.network_digest()}"
        kept = _read(
            self.folder.path / EMBEDDINGS, key, (len(dataset), self.embedder.embedding_size)
        )
        labels = np.asarray(dataset.labels, np.int64)
        if kept is None:
            if processes > 1:
                from zoo.trained.processes import embed_test

                kept = embed_test(processes, self, reporter)
            else:
                kept = self._embed(dataset, 0, reporter).cpu().numpy()
            self._keep(kept, key)
        return Embedded(kept, labels)

    def embed_share_of_test(self, ranks: Ranks, reporter: Reporter) -> NDArray[np.float32]:
        """Return the embeddings of this process's share of the test split."""
        (dataset,) = splits.decoded(self.config, [self.test_split()], reporter)
        mine = ranks.share(len(dataset))
        return self._embed(dataset, 0, reporter, share=mine).cpu().numpy()

    def _embed(
        self,
        dataset: ImageDataset,
        workers: int,
        reporter: Reporter,
        batch_size: int | None = None,
        share: slice | None = None,
    ) -> torch.Tensor:
        """Return the embeddings (N, d) of a data set, or of a share of it, in its order.

        They are as the run compares them.
        """
        size = batch_size or self.config.evaluate.batch_size
        start, stop = (0, len(dataset)) if share is None else (share.start, share.stop)
        batches = evaluation_batches(
            dataset,
            self.config.images,
            batch_size=size,
            start=start,
            stop=stop,
            workers=workers,
            device=self.device,
        )
        total = -(-(stop - start) // size)
        with torch.inference_mode():
            tracked = reporter.track(batches, total, "embedding")
            nothing = torch.empty(0, self.embedder.embedding_size, device=self.device)
            found = torch.cat([nothing, *(self._as_searched(images) for images in tracked)])
        files.check_finite(self.folder.path, found.cpu().numpy(), "image {}".format)
        return found

    def _points(self, embeddings: torch.Tensor) -> NDArray[np.float32]:
        """Return what a search compares: embeddings of length 1, or points of the space."""
        exact = embeddings.cpu().double()  # moved first, since not every device has float64
        found: NDArray[np.float32] = self.embedder.points(exact).float().numpy()
        return found

    def _as_searched(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (N, d) of prepared images; their lengths differ."""
        return self.embedder.combined(self.embedder(pixels.to(self.device, non_blocking=True)))

    def _check_same(self, dataset: ImageDataset) -> None:
        """Refuse images that are not those the run was measured with."""
        if not self.folder.finished:
            return
        recorded = self.folder.result()["dataset"].get("fingerprint")
        if recorded and recorded != dataset.fingerprint():
            raise UserError(
                f"{self.folder.path}: the test images have changed since the run was measured; "
                "restore them, or run again with --restart"
            )

    def _keep(self, embeddings: NDArray[np.float32], key: str) -> None:
        """Save the embeddings in the folder of the run, if it can be written."""
        buffer = io.BytesIO()
        digest = np.array(_digest_of(embeddings))
        np.savez(buffer, embeddings=embeddings, key=np.array(key), digest=digest)
        try:
            self.folder.write(EMBEDDINGS, buffer.getvalue())
        except UserError as error:
            warnings.warn(f"the embeddings cannot be saved: {error}", stacklevel=2)


@checked
def load(run: str | Path, device: str | torch.device = "auto") -> Trained:
    """Return the network of a run, ready for use.

    ::

        model = zoo.load("ice_folder")
        embeddings = model(["a.jpg", "b.jpg"])  # float32 (2, 512), of length 1
        cosine = embeddings[0] @ embeddings[1]

    The images of the run, the weights that it began with, and the plugins that it was trained with
    are not needed, except a plugin that has the backbone.

    Args:
        run: the folder of a run, its name in ``runs/``, or the beginning of that if it is the only
            one.
        device: auto, cpu, mps, cuda, or one GPU of several as cuda:0.

    Raises:
        UserError: if there is no such run, its checkpoint cannot be read, or a weight is NaN or
            infinite.
    """
    folder = RunFolder.find(run)
    config = folder.config()
    state = folder.network(config)
    if state is None and config.train.iterations:
        raise UserError(
            f"{folder.path}: has no checkpoint.pt, so it has no network; the run may have just "
            "begun, or this is a copy of its results alone"
        )
    chosen = choose_device(str(device))
    embedder = _build(folder, config if state is None else _without_weights(config), chosen)
    if state is not None:
        _restore(embedder, state, folder)
        if state["iteration"] < config.train.iterations:
            done = f"iteration {state['iteration']} of {config.train.iterations}"
            warnings.warn(f"{folder.path}: the run is not finished; this is {done}", stacklevel=2)
    _check_weights(embedder, folder)
    return Trained(folder, config, embedder, str(device))


def space_of(spec: Mapping[str, Any]) -> Space:
    """Return a space by its name and arguments, as a config has them."""
    space: Space = build("spaces", ComponentSpec(**spec), {})
    return space


def _build(folder: RunFolder, config: Config, device: torch.device) -> Embedder:
    """Return the network of a config, or raise a UserError; only the backbone is looked up."""
    check_there(folder, "backbones", config.model.backbone.name)
    try:
        return experiment.build_embedder(config, device)
    except UserError as error:
        raise UserError(printable(f"{folder.path / CONFIG}: model.backbone: {error}")) from error


def _without_weights(config: Config) -> Config:
    """Return a config whose backbone begins with random weights, which a checkpoint replaces."""
    spec = config.model.backbone
    if spec.arguments.get("weights") is None:
        return config
    backbone = spec.model_copy(update={"weights": None})
    model = config.model.model_copy(update={"backbone": backbone})
    return config.model_copy(update={"model": model})


def _restore(embedder: Embedder, state: dict[str, Any], folder: RunFolder) -> None:
    try:
        embedder.load_state_dict(state["embedder"])
    except Exception as error:
        raise UserError(
            f"{folder.path}: the checkpoint is not of the network in its config.yaml "
            f"({type(error).__name__})"
        ) from error


def _digest_of(embeddings: NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(embeddings).tobytes()).hexdigest()


def _check_weights(embedder: Embedder, folder: RunFolder) -> None:
    for name, value in embedder.state_dict().items():
        if not torch.isfinite(value).all():
            raise UserError(
                f"{folder.path}: its network has weights that are NaN or infinite, first in "
                f"{name}; train it again, or use another run"
            )


def _read(path: Path, key: str, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return saved embeddings; None if they are missing, damaged, or do not fit."""
    try:
        check_stored(path)
        with np.load(path, allow_pickle=False) as kept:
            embeddings: NDArray[np.float32] = kept["embeddings"]
            fits = embeddings.dtype == np.float32 and embeddings.shape == shape
            good = fits and kept["key"] == key and np.isfinite(embeddings).all()
            whole = "digest" not in kept or kept["digest"] == _digest_of(embeddings)
            return embeddings if good and whole else None
    except Exception:  # noqa: BLE001 NumPy raises anything on a damaged file
        return None
