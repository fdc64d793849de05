"""The interfaces of components, and the few types they share. Does not import torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from zoo.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image
    from torch import Tensor

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Preprocess:
    """What a backbone expects of its input; the pipeline prepares images this way.

    Attributes:
        channels: order of the colour planes, or ``"L"`` for one gray plane.
        scale: value of a white pixel before ``mean`` is subtracted: 1 or 255.
        mean: one value for each plane, in the order of ``channels`` and units of ``scale``.
        std: likewise; the input is ``(pixels * scale / 255 - mean) / std``.
    """

    channels: Literal["RGB", "BGR", "L"] = "RGB"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


@runtime_checkable
class ImageDataset(Protocol):
    """A map-style data set: ``dataset[i]`` is ``(PIL image, label)``.

    Images may differ in mode; RGB and L are used as they are, others are converted to RGB. The
    classes of the train and the test split are disjoint. A data set whose images fit in memory may
    also have ``images``, a uint8 tensor (N, channels, H, W); batches are then cropped from it. If
    it also has ``check_pixels``, this is called with the indices of each batch first, and raises a
    UserError if one of these images is damaged.

    Attributes:
        labels: int64 array (N,), known without reading an image; indices into ``class_names``.
        class_names: the name of every class of this split.
    """

    labels: NDArray[np.int64]
    class_names: Sequence[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, int]: ...

    def fingerprint(self) -> str:
        """Return a short digest that changes when the images, labels or the split change."""
        ...

    def verify(self) -> list[str]:
        """Check the files on disk and return one line per problem; empty if there is none.

        A line that begins with ``"warning: "`` or ``"note: "`` is a warning or a note, see
        :class:`Finding`; any other line is an error.
        """
        ...


class Count(NamedTuple):
    """The size of a split."""

    images: int
    classes: int

    def __str__(self) -> str:
        images = "1 image" if self.images == 1 else f"{self.images:,} images"
        return f"{images} of " + ("1 class" if self.classes == 1 else f"{self.classes:,} classes")


class Finding(NamedTuple):
    """One observation about the files of a data set.

    Attributes:
        severity: an error makes results wrong or stops a run, a warning makes them doubtful, a note
            is only for information.
        what: a sentence.
        where: a split, or a path relative to the folder of the data set.
    """

    severity: Literal["error", "warning", "note"]
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where!r}: {self.what}"


class Survey(NamedTuple):
    """What this machine has of a data set, complete or not.

    Attributes:
        folder: where it was found; None if it has no folder.
        layout: which of several possible layouts was found there.
        sizes: for each split, the number of images of each class.
        findings: what was observed.
    """

    folder: Path | None
    layout: str
    sizes: Mapping[Split, Sequence[int]]
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Source:
    """A file on somebody else's server, and how to recognise it.

    Attributes:
        filename: its name in our folder.
        urls: http or https addresses, tried in this order; empty if all are dead.
        md5: hexadecimal digest; this or ``sha256`` is required, and each that is given is checked.
        sha256: hexadecimal digest.
        size: bytes, where known.
        holds: of an archive, the folder to unpack; the rest of the archive is dropped.
        most_bytes: the limit on its unpacked size.
        most_files: the limit on its number of files and folders.
    """

    filename: str
    urls: tuple[str, ...] = ()
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None
    holds: str | None = None
    most_bytes: int = 1 << 34
    most_files: int = 1 << 18

    def __str__(self) -> str:
        size = [] if self.size is None else [f"{self.size:,} bytes"]
        return f"{self.filename} ({', '.join([*size, *self.digests()[:1]])})"

    def digests(self) -> list[str]:
        """Return its known digests, such as ``"MD5 97ec..."``."""
        given = {"MD5": self.md5, "SHA-256": self.sha256}
        return [f"{kind} {digest}" for kind, digest in given.items() if digest is not None]


class Downloadable(Protocol):
    """What a data set also has so that ``zoo data`` can download and verify it.

    Its constructor takes ``root``, by default ``data_dir(name)``.

    Attributes:
        sources: the files to download.
        table: the size of each split when the data set is complete.
    """

    sources: ClassVar[Sequence[Source]]
    table: ClassVar[Mapping[Split, Count]]

    @classmethod
    def survey(cls, root: str | None = None, *, content: bool = True) -> Survey:
        """Look at what is there; everything missing, miscounted or broken is a finding.

        Args:
            root: the folder.
            content: read the files; False only looks whether they exist, which is fast.

        Raises:
            UserError: the folder does not have this data set.
        """
        ...


class BatchSampler(Protocol):
    """Chooses the images of each batch: yields lists of indices, epoch after epoch, endlessly.

    A batch has at least one index; all are whole numbers from 0 to below the number of images.

    The runtime passes these arguments to its constructor if it has such parameters: ``labels``,
    ``seed``, and ``embed``, a function from indices of training images to their embeddings by the
    current network, an array (n, d). A sampler that uses ``embed`` has ``draws_late = True``: a
    batch is then drawn only when it is needed. If a sampler has ``batch_size``, a loss that needs
    larger batches (``check_batch``, see :class:`zoo.losses.spectral_clust.SpectralClustLoss`) says
    so before training.
    """

    def __len__(self) -> int:
        """Return the number of batches of an epoch; the same for all, unless it draws late."""
        ...

    def __iter__(self) -> Iterator[list[int]]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return its position: numbers, text and tensors, in maps and lists of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position: the next batch is the one that would have followed."""
        ...


class Regroupable(Protocol):
    """What a sampler also has if a loss may say which images belong in one batch."""

    draws_late: Literal[True]

    def regroup(self, groups: NDArray[np.int64]) -> None:
        """Draw each batch of this epoch from one group; ``groups`` (n,) has that of each image.

        The groups are those that :meth:`LossHooks.begin_epoch` returned. They are part of the
        sampler's ``state_dict``.
        """
        ...


class LossHooks(Protocol):
    """What a loss may also have; each part is optional, and found by its name.

    A loss is a ``torch.nn.Module`` that is called as ``loss(embeddings, labels)``, or, with a
    miner, as ``loss(embeddings, labels, indices_tuple)``. It is given more if it asks for it, by a
    parameter of one of these names:

    * of ``forward``: ``image_ids``, int64 (N,), the place of each image of the batch in the
      training data, from 0. With several processes, each computes the whole loss.
    * of the constructor: ``num_classes``, ``embedding_size``, ``num_images`` of the training data,
      and ``level_sizes``, the sizes of the parts of an embedding: the levels of the network, or the
      ``model.slices`` of a config. Without ``level_sizes``, each part has a loss of its own and
      their sum is minimised. With it there is one loss, which is called with whole embeddings
      (N, sum of the sizes).
    * of the constructor: ``space``, in which images will be compared (``model.space``), see
      :class:`Space`; None for cosines. A loss that works only in some declares their names,
      ``spaces = ("hyperbolic",)``.

    What a loss learns or remembers is in its ``state_dict``: parameters, buffers, and for what has
    no fixed shape ``get_extra_state`` and ``set_extra_state`` of torch (plain data and tensors). So
    it is saved, resumed, and equal in all processes of a run. Networks of its own are submodules;
    their parameters are trained with all others.
    """

    def begin_epoch(
        self, epoch: int, labels: Tensor, embed: Callable[[Sequence[int] | None], Tensor]
    ) -> NDArray[np.int64] | None:
        """Look at the training data between epochs. A miner may have this method too.

        It is called before the first batch of each epoch, as the sampler counts them, on the loss
        and the modules in it.

        Args:
            epoch: its number, from 0.
            labels: int64 (n,), of all training images.
            embed: from ids of training images, or None for all, to their embeddings by the present
                network (k, d), as ``forward`` is given them, without a graph.

        Returns:
            None, or a number (n,) for each image: those of one number shall meet in a batch. The
            sampler must be :class:`Regroupable`.
        """
        ...

    def parameter_groups(self) -> Sequence[Mapping[str, Any]]:
        """Return ``{"params": [...], "lr_multiplier": 0.1}`` for parameters with their own rate.

        The factor is on top of ``optimizer.loss_multiplier``. Parameters that no group has get 1.
        """
        ...


class Miner(Protocol):
    """A ``torch.nn.Module`` that picks the pairs or triplets of a batch that a loss looks at.

    It returns a tuple of int64 tensors, (anchors, positives, negatives) or (anchors, positives,
    anchors, negatives): indices into the batch. Tensors of one pair or triplet have the same
    length; they are empty where nothing was picked. Positives share the label of their anchor and
    are not the anchor itself; negatives have another label. A miner that breaks these rules on
    purpose declares it: ``expected_failures = {"check_labels": reason}``.
    """

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the pairs or triplets of embeddings (N, d) with labels (N,)."""
        ...


class Backbone(Protocol):
    """A ``torch.nn.Module`` from images (N, channels, H, W) to one feature map for each level.

    A feature map is (N, C, H', W'), or (N, C) where the network has already pooled it. A backbone
    of several levels may give each a short name in ``level_names``. One that takes certain sizes of
    images may have a method ``check_size(size)``, which is called with (rows, columns) before
    training, and raises a UserError that says which sizes it takes.

    Attributes:
        feature_dims: C of each level.
        preprocess: what it expects of its input.
    """

    feature_dims: tuple[int, ...]
    preprocess: Preprocess

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the feature map of each level."""
        ...


class Space(Protocol):
    """By what distance images are compared: in a loss, in the evaluation, in a search.

    Without one, embeddings are scaled to length 1 and compared by their cosine. A space first makes
    ``points`` of them; all else is about points. Exact evaluation and search need that the distance
    of a query to a point falls with an inner product of two vectors that each of them has.
    """

    def points(self, embeddings: Tensor) -> Tensor:
        """Return the points (N, k) of raw embeddings (N, d), with a graph; k may differ from d."""
        ...

    def distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distances (N, M) of points (N, k) and (M, k), with a graph, for losses."""
        ...

    def query_vectors(self, points: Tensor) -> Tensor:
        """Return vectors (N, m) of queries, in the type of the points."""
        ...

    def gallery_vectors(self, points: Tensor) -> Tensor:
        """Return vectors (M, m): the larger an inner product with a query's, the nearer."""
        ...

    def distances_of(self, products: Tensor, queries: Tensor) -> Tensor:
        """Return the distances (N, M) of inner products (N, M); queries are the points (N, k)."""
        ...


class Tracker(Protocol):
    """Shows the numbers of a run in another place while it trains.

    The runtime passes these arguments to its constructor if it has such parameters: ``run_folder``
    (a path), ``run_name``, and ``settings``, the whole config as plain data. The constructor checks
    its arguments, and raises a UserError if they are wrong or a package is missing: this ends the
    run before it trains. An error of the methods does not: the user is warned, and the run goes on
    without the tracker. With several processes, only the first has trackers.
    """

    def begin(self, iteration: int) -> None:
        """Begin to track a run from the start, 0, or go on from an iteration.

        Numbers of later iterations, logged before the run was stopped, are obsolete.
        """
        ...

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Show numbers of an iteration, such as ``{"loss": 0.5, "lr": 0.001}``.

        Names have letters, digits and ``_``. Several calls may be about one iteration, and a number
        may be infinite or NaN.
        """
        ...

    def end(self, finished: bool) -> None:
        """End: the run is finished, or was stopped and may go on later."""
        ...


# What the runtime supplies, by kind, to components that have such a parameter.
RUNTIME: dict[str, frozenset[str]] = {
    "losses": frozenset({"num_classes", "embedding_size", "num_images", "level_sizes", "space"}),
    "miners": frozenset(),
    "samplers": frozenset({"labels", "seed", "embed"}),
    "backbones": frozenset(),
    "datasets": frozenset({"split"}),
    "spaces": frozenset(),
    "trackers": frozenset({"run_folder", "run_name", "settings"}),
}


def cache_dir() -> Path:
    """Return the folder for files that can be recreated: ``$ZOO_CACHE``, else the user's cache."""
    import platformdirs

    own = os.environ.get("ZOO_CACHE")
    return given_folder("ZOO_CACHE=", own or platformdirs.user_cache_dir("metric-zoo"))


def data_dir(name: str) -> Path:
    """Return the folder of a data set: in ``$ZOO_DATA``, else in the cache folder."""
    own = os.environ.get("ZOO_DATA")
    return (given_folder("ZOO_DATA=", own) if own else cache_dir() / "data") / name


def given_folder(setting: str, root: str) -> Path:
    """Return the folder that the user gave in a setting such as ``"--root "``.

    Raises:
        UserError: if it cannot be a folder.
    """
    if not root or "\0" in root:
        raise UserError(f"{setting}{root!r} is not a folder; leave it out to use the default")
    try:
        return Path(root).expanduser().absolute()
    except RuntimeError as error:  # ~name of an unknown user
        raise UserError(f"{setting}{root!r}: {error}") from error


def data_command(verb: str, name: str, root: Path) -> str:
    """Return a command line, such as ``"zoo data verify sop"``, for a data set in a folder."""
    if root == data_dir(name):
        return f"zoo data {verb} {name}"
    shown = shlex.quote(str(root)) if str(root).isprintable() else "..."
    return f"zoo data {verb} {name} --root {shown}"
