"""What the core asks of a component, and the few types they share. Imports no torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
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
    """What a backbone expects of its input; the pipeline obeys it.

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

    Images may differ in mode; RGB and L are taken as they are, others become RGB. The classes of
    the train and the test split are disjoint. A data set whose images fit in memory may also have
    ``images``, a uint8 tensor (N, channels, H, W), from which batches are then cut. If it has
    ``check_pixels`` as well, that is called with the indices of each batch before, and raises a
    UserError if one of these images is damaged.

    Attributes:
        labels: int64 array (N,), known without reading an image; index into ``class_names``.
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
        """Return what was found in the files on disk, a line for each; empty when all is well.

        A line that begins with ``"warning: "`` or ``"note: "`` is no more than that, see
        :class:`Finding`; any other is an error.
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
    """One thing that was noticed about the files of a data set.

    Attributes:
        severity: an error makes results wrong or stops a run, a warning makes them doubtful, a note
            is only good to know.
        what: a sentence.
        where: a split, or a path from the folder of the data set.
    """

    severity: Literal["error", "warning", "note"]
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where!r}: {self.what}"


class Survey(NamedTuple):
    """What there is of a data set on this machine, whole or not.

    Attributes:
        folder: where it was found; None if it is in no folder.
        layout: what was found there, if there are several possibilities.
        sizes: of each split, how many images each class has.
        findings: what was noticed.
    """

    folder: Path | None
    layout: str
    sizes: Mapping[Split, Sequence[int]]
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Source:
    """A file that somebody else serves, and how to know it.

    Attributes:
        filename: its name in our folder.
        urls: addresses, http or https, tried in this order; none if all are dead.
        md5: hexadecimal digest; this or ``sha256`` is needed, and what is given is checked.
        sha256: hexadecimal digest.
        size: bytes, where known.
        holds: the folder in it that is wanted, if it is an archive; what else it holds is dropped.
        most_bytes: that it may unpack to.
        most_files: that it may unpack to, folders among them.
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
        """Return what is known of its content, such as ``"MD5 97ec..."``."""
        given = {"MD5": self.md5, "SHA-256": self.sha256}
        return [f"{kind} {digest}" for kind, digest in given.items() if digest is not None]


class Downloadable(Protocol):
    """What a data set offers besides, so that ``zoo data`` can get it and look it over.

    Its constructor takes ``root``, by default ``data_dir(name)``.

    Attributes:
        sources: the files to get.
        table: the size that each split has when the data set is whole.
    """

    sources: ClassVar[Sequence[Source]]
    table: ClassVar[Mapping[Split, Count]]

    @classmethod
    def survey(cls, root: str | None = None, *, content: bool = True) -> Survey:
        """Look at what is there; whatever is missing, miscounted or broken is a finding.

        Args:
            root: the folder.
            content: read the files; without it, only see whether they are there, in a moment.

        Raises:
            UserError: there is nothing of the kind in the folder.
        """
        ...


class BatchSampler(Protocol):
    """Decides what a batch is: yields lists of indices, epoch after epoch, without end.

    A batch has one index at least, and all are whole numbers from 0 to below the number of images.

    Its constructor is given by the runtime, if it has such parameters: ``labels``, ``seed``, and
    ``embed``, a function from indices of training images to what the network as it is makes of
    them, an array (n, d). One that uses it has ``draws_late = True``: a batch is then drawn only
    when it is due. If it has ``batch_size``, a loss that needs larger batches (``check_batch``, see
    :class:`zoo.losses.spectral_clust.SpectralClustLoss`) says so before training.
    """

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        ...

    def __iter__(self) -> Iterator[list[int]]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands: numbers, text and tensors, in maps and lists of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next batch is the one that would have come next."""
        ...


class Miner(Protocol):
    """A ``torch.nn.Module`` that picks the pairs or triplets of a batch that a loss looks at.

    It returns a tuple of int64 tensors, (anchors, positives, negatives) or (anchors, positives,
    anchors, negatives): indices into the batch, parts that belong together of one length, empty
    where there is nothing. Positives share the label of their anchor and are not the anchor itself,
    negatives have another. One that breaks that on purpose says so, ``expected_failures =
    {"check_labels": reason}``.
    """

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return what was picked of embeddings (N, d) with labels (N,)."""
        ...


class Backbone(Protocol):
    """A ``torch.nn.Module`` from images (N, channels, H, W) to one feature map for each level.

    A feature map is (N, C, H', W'), or (N, C) where the network has pooled already. One of several
    levels may say what they are called, a short name for each, in ``level_names``.

    Attributes:
        feature_dims: C of each level.
        preprocess: what the input has to be.
    """

    feature_dims: tuple[int, ...]
    preprocess: Preprocess

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the feature map of each level."""
        ...


# What the runtime can supply, by kind, to a component that declares the parameter.
RUNTIME: dict[str, frozenset[str]] = {
    "losses": frozenset({"num_classes", "embedding_size"}),
    "miners": frozenset(),
    "samplers": frozenset({"labels", "seed", "embed"}),
    "backbones": frozenset(),
    "datasets": frozenset({"split"}),
}


def cache_dir() -> Path:
    """Return the folder for what can be made again: ``$ZOO_CACHE``, else the user's cache."""
    import platformdirs

    own = os.environ.get("ZOO_CACHE")
    return given_folder("ZOO_CACHE=", own or platformdirs.user_cache_dir("metric-zoo"))


def data_dir(name: str) -> Path:
    """Return where a data set is looked for: in ``$ZOO_DATA``, else in the cache folder."""
    own = os.environ.get("ZOO_DATA")
    return (given_folder("ZOO_DATA=", own) if own else cache_dir() / "data") / name


def given_folder(setting: str, root: str) -> Path:
    """Return a folder that somebody gave, by a setting such as ``"--root "``.

    Raises:
        UserError: if it cannot be one.
    """
    if not root or "\0" in root:
        raise UserError(f"{setting}{root!r} is no folder; leave it out for the usual one")
    try:
        return Path(root).expanduser().absolute()
    except RuntimeError as error:  # ~ of nobody
        raise UserError(f"{setting}{root!r}: {error}") from error


def data_command(verb: str, name: str, root: Path) -> str:
    """Return a command line, such as ``"zoo data verify sop"``, for a data set in a folder."""
    if root == data_dir(name):
        return f"zoo data {verb} {name}"
    shown = shlex.quote(str(root)) if str(root).isprintable() else "..."
    return f"zoo data {verb} {name} --root {shown}"
