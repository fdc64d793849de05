"""Embed files of images; those that cannot be read are left out and reported by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from zoo import __version__
from zoo.config.schema import Config, Images
from zoo.data.decoding import MAX_PIXELS, load_rgb, why_unreadable
from zoo.data.pipeline import centre_crops, load, same_planes
from zoo.data.tree import images_under
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.support import environment
from zoo.support.files import replace_file, writing
from zoo.support.text import counted, printable

_LISTED = 10  # unreadable files in an error


class Network(Protocol):
    """The network of a run, such as :class:`zoo.trained.network.Trained`."""

    folder: RunFolder
    config: Config
    device: torch.device
    requested: str
    embedding_size: int

    def embed_pixels(self, pixels: Tensor) -> NDArray[np.float32]:
        """Return the embeddings of images that are scaled and cropped already."""

    def network_digest(self) -> str:
        """Return a digest of everything that an embedding depends on."""


class Gathered(NamedTuple):
    """Embeddings of files.

    Attributes:
        root: the folder that the names start from.
        names: of the files that could be read, in order.
        embeddings: float32 (N, d), of length 1.
        unreadable: the other files, by name, and why they could not be read.
    """

    root: Path
    names: list[str]
    embeddings: NDArray[np.float32]
    unreadable: dict[str, str]

    def __repr__(self) -> str:
        left_out = f", {len(self.unreadable):,} unreadable" if self.unreadable else ""
        size = self.embeddings.shape[-1]
        return printable(f"<Gathered {self.root}: {len(self.names):,} images, {size}-d{left_out}>")


def embed_folder(
    model: Network,
    folder: str | Path,
    *,
    batch_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
    processes: int = 1,
    reporter: Reporter | None = None,
) -> Gathered:
    """Return the embeddings of all images in a folder, see :meth:`Trained.embed_folder`."""
    root, names = images_of(folder)
    found = embed_named(
        model,
        root,
        names,
        batch_size=batch_size,
        max_pixels=max_pixels,
        processes=processes,
        reporter=reporter or Reporter(),
    )
    check_any(root, found.names, found.unreadable)
    return found


def embed_named(
    model: Network,
    root: Path,
    names: Sequence[str],
    *,
    processes: int = 1,
    batch_size: int | None,
    max_pixels: int,
    reporter: Reporter,
) -> Gathered:
    """Return the embeddings of files in a folder, computed by so many processes."""
    embed: Callable[..., Gathered] = embed_files
    if processes > 1:
        from zoo.trained import processes as several

        embed = partial(several.embed_files, min(processes, len(names)))
    return embed(
        model, root, names, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
    )


def check_any(root: Path, names: Sequence[str], unreadable: dict[str, str]) -> None:
    """Raise a UserError if no image of a folder could be read."""
    if not names:
        raise UserError(_none_left(printable(str(root)), unreadable))


def images_of(folder: str | Path) -> tuple[Path, list[str]]:
    """Return a resolved folder and its images' sorted names; raise a UserError if it has none."""
    shown = printable(str(folder))
    try:
        root = Path(folder).expanduser().resolve()
        is_folder, is_there = root.is_dir(), root.exists()
    except (OSError, RuntimeError, ValueError) as error:  # permission; unknown ~user; null byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown}: {reason}") from error
    if not is_folder:
        what = "is a file" if is_there else "does not exist"
        raise UserError(f"{shown}: {what}; give a folder of images")
    stray: list[str] = []
    names = images_under(root, root, stray)
    if not names:
        files = f", only {counted(len(stray), 'other file')}" if stray else ""
        raise UserError(f"{shown}: no images in it{files}")
    return root, names


def embed_files(
    model: Network,
    root: Path,
    names: Sequence[str],
    *,
    batch_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
    reporter: Reporter,
) -> Gathered:
    """Return the embeddings of files, each ``root / name``, prepared like the test images.

    One batch of images is in memory at a time. For another device than the CPU, processes decode
    ahead; on a CPU, whose cores the network needs too, threads decode each batch. Raises a
    UserError if images that are not scaled differ in size, or an embedding is NaN or infinite.
    """
    size = batch_size or model.config.evaluate.batch_size
    workers = _workers(model.device)
    keys = [range(i, min(i + size, len(names))) for i in range(0, len(names), size)]
    threads = 1 if workers else environment.cores()
    files = _Parts(_Files(root, names, max_pixels), model.config.images, threads)
    rows = np.empty((len(names), model.embedding_size), np.float32)
    kept: list[str] = []
    unreadable: dict[str, str] = {}
    parts = load(files, keys, min(workers, len(keys)), model.device)
    for part in reporter.track(parts, len(keys), "embedding"):
        unreadable.update(part.unreadable)
        if part.names:
            end = len(kept) + len(part.names)
            rows[len(kept) : end] = model.embed_pixels(part.pixels)
            check_finite(model.folder.path, rows[len(kept) : end], part.names.__getitem__)
            kept += part.names
    return Gathered(root, kept, rows[: len(kept)], unreadable)


def embed_queries(
    model: Network,
    paths: Sequence[Path],
    *,
    batch_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
    reporter: Reporter,
) -> Gathered:
    """Embed single files, which keep the names given; raise a UserError if none can be read."""
    names = [str(path) for path in paths]
    found = embed_files(
        model, Path(), names, batch_size=batch_size, max_pixels=max_pixels, reporter=reporter
    )
    if not found.names:
        raise UserError(_none_left("queries", found.unreadable))
    report_unreadable(found, reporter)
    return found


def check_finite(run: Path, embeddings: NDArray[np.float32], name: Callable[[int], str]) -> None:
    """Raise a UserError that names the first image if embeddings (N, d) are NaN or infinite."""
    finite = np.isfinite(embeddings).all(1)
    if not finite.all():
        first = printable(name(int(finite.argmin())))
        raise UserError(
            f"{printable(str(run))}: its network gives NaN or infinite embeddings, first for "
            f"{first}; use another run"
        )


def save(path: Path, model: Network, found: Gathered) -> None:
    """Write an .npz that loads with ``allow_pickle=False``; raise a UserError if that fails."""
    about = {
        "run": str(model.folder.path.resolve()),
        "digest": model.config.digest(),
        "network": model.network_digest(),
        "version": __version__,
        "folder": str(found.root),
    }
    texts = {key: np.array(value) for key, value in about.items()}
    arrays = {"embeddings": found.embeddings, "names": np.array(found.names), **texts}
    with writing(path):
        replace_file(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


class _Read(Protocol):
    """Files of which some may have been unreadable, such as :class:`Gathered`."""

    @property
    def names(self) -> list[str]: ...
    @property
    def unreadable(self) -> dict[str, str]: ...


def report_unreadable(found: _Read, reporter: Reporter) -> None:
    """Report which files were left out, and why."""
    for name, why in found.unreadable.items():
        reporter.say(printable(f"unreadable  {name}: {why}"))
    if found.unreadable:
        left_out = counted(len(found.unreadable), "unreadable file")
        reporter.say(f"{left_out} left out, {len(found.names):,} embedded")


def _workers(device: torch.device) -> int:
    return 0 if device.type == "cpu" else min(8, environment.cores())


class _Part(NamedTuple):
    names: list[str]
    pixels: Tensor  # uint8 (N, channels, H, W)
    unreadable: dict[str, str]


class _Files:
    """Files as a data set of one class."""

    class_names: Sequence[str] = ("",)

    def __init__(self, root: Path, names: Sequence[str], max_pixels: int) -> None:
        self.root, self.names, self.max_pixels = root, names, max_pixels
        self.labels = np.zeros(len(names), np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return load_rgb(self.root / self.names[index], self.max_pixels), 0

    def fingerprint(self) -> str:
        return ""

    def verify(self) -> list[str]:
        return []


class _Parts(Dataset[_Part]):
    """Batches of files, prepared for the network."""

    def __init__(self, files: _Files, images: Images, threads: int) -> None:
        self.files, self.images, self.threads = files, images, threads

    def __getitem__(self, rows: Sequence[int]) -> _Part:
        with ThreadPoolExecutor(self.threads) as pool:
            prepared = list(pool.map(self._prepare, rows))
        names: list[str] = []
        images: list[Tensor] = []
        unreadable: dict[str, str] = {}
        for row, found in zip(rows, prepared, strict=True):
            name = self.files.names[row]
            if isinstance(found, str):
                unreadable[name] = found
            else:
                names.append(name)
                images.append(found)
        return _Part(names, _stack(names, images), unreadable)

    def _prepare(self, index: int) -> Tensor | str:
        """Return one image, uint8 (1, channels, H, W), or why it cannot be read."""
        try:
            return centre_crops(self.files, self.images, [index])
        except UserError as error:  # its message has the path; the name is enough
            cause = error.__cause__
            return why_unreadable(cause if isinstance(cause, Exception) else error)
        except Exception as error:  # noqa: BLE001 such as of scaling 1 x 10^5 pixels
            return why_unreadable(error)


def _stack(names: list[str], images: list[Tensor]) -> Tensor:
    for name, image in zip(names, images, strict=True):
        if image.shape[2:] != images[0].shape[2:]:
            sizes = ["x".join(map(str, one.shape[:1:-1])) for one in (images[0], image)]
            raise UserError(
                printable(
                    f"{names[0]} is {sizes[0]} pixels and {name} is {sizes[1]}; the run neither "
                    "scales nor crops (images.resize, images.crop), so all must have one size"
                )
            )
    return torch.cat(same_planes(images)) if images else torch.empty(0)


def _none_left(root: str, unreadable: dict[str, str]) -> str:
    lines = [f"  {printable(name)}: {why}" for name, why in unreadable.items()]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"  and {len(lines) - _LISTED} more"]
    return "\n".join([f"{root}: none of its images can be read:", *lines])
