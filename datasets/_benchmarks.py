"""The base class of the field's benchmarks: finding one on disk, complete or not, and checking it.

The file of a data set defines the possible layouts on disk and how to read the annotations of each;
:class:`Benchmark` does the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.base import Count, Finding, Source, Split, Survey, data_command, data_dir, given_folder
from zoo.data.decoding import MAX_PIXELS, load_rgb
from zoo.errors import UserError
from zoo.support.files import read_text
from zoo.support.text import counted

from ._images import check_split
from ._looks import Seen, findings_of, look_at_all, some

_T = TypeVar("_T")

_SPLITS: tuple[Split, Split] = ("train", "test")
_LEAST_CLASSES = {"train": 2, "test": 1}


class Listing(NamedTuple):
    """The annotations of a data set.

    Attributes:
        images: path below the folder, with ``/``, and number of the class, in the listed order.
        names: of the classes, by number.
        train: the numbers of the classes for training; all others are for testing.
    """

    images: list[tuple[str, int]]
    names: Mapping[int, str]
    train: Container[int]

    def of(self, split: Split) -> list[tuple[str, int]]:
        """Return the images of a split."""
        return [row for row in self.images if (row[1] in self.train) == (split == "train")]


class Layout(NamedTuple):
    """A possible arrangement of the files of a data set on disk.

    Attributes:
        title: completes "this is ...".
        needs: required files, as glob patterns; of several in one entry, one is enough.
        read: reads the annotations, given the folder.
        inside: the folders of ``root`` in which it may be.
        hint: a hint for the message if something is missing.
    """

    title: str
    needs: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Listing]
    inside: tuple[str, ...]
    hint: str = ""


class _Found(NamedTuple):
    layout: str
    folder: Path
    listing: Listing


class _Partly(NamedTuple):
    """A layout of which only a part is there."""

    share: float
    layout: Layout
    folder: Path
    lacking: str


class Benchmark(ABC):
    """A data set whose images, classes and split are fixed, so that papers can be compared.

    A subclass documents the arguments and attributes.
    """

    name: ClassVar[str]
    sources: ClassVar[tuple[Source, ...]]
    table: ClassVar[Mapping[Split, Count]]  # Table 1 of the paper

    def __init__(self, split: Split, root: str | None = None, max_pixels: int = MAX_PIXELS) -> None:
        check_split(split)
        self.split: Split = split
        self.max_pixels = max_pixels
        self.root = self._root(root)
        self.layout, self.folder, listing = self._find(self.root)
        self._check_complete([name for name, _ in listing.images])
        self._check_counts(listing)
        images = listing.of(split)
        numbers, labels = np.unique([number for _, number in images], return_inverse=True)
        self.files = [name for name, _ in images]
        self.labels: NDArray[np.int64] = labels.astype(np.int64)
        self.class_names = [listing.names[number] for number in numbers.tolist()]
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return load_rgb(self.folder / self.files[index], self.max_pixels), int(self.labels[index])

    @classmethod
    @abstractmethod
    def layouts(cls) -> tuple[Layout, ...]:
        """Return the layouts to look for; the first one that is found counts."""

    def fingerprint(self) -> str:
        """Return a digest of the split, and of path, label and size in bytes of its images.

        The sizes are read at the first call. The content is not read: see :meth:`verify`.
        """
        self._fingerprint = self._fingerprint or self._digest()
        return self._fingerprint

    def verify(self) -> list[str]:
        """Return a line for each finding of :meth:`survey`, its severity first."""
        return [str(one) for one in self.survey(str(self.root), self.max_pixels).findings]

    @classmethod
    def survey(
        cls, root: str | None = None, max_pixels: int = MAX_PIXELS, *, content: bool = True
    ) -> Survey:
        """Check the current files of both splits, complete or not.

        Findings are: numbers of images and classes that differ from Table 1 of the paper; images
        that are missing or do not decode; files with the same content, which are a warning if they
        are in both splits or have different labels; and images of each split that are gray (in any
        mode) or have a side of less than 32 pixels.

        Args:
            root: the folder, as for the constructor.
            max_pixels: larger images count as broken.
            content: read and decode every image, in threads, with a bar on stderr if that is a
                terminal; False only looks whether they exist.

        Raises:
            UserError: the folder does not have the data set, or its annotations are broken.
        """
        layout, folder, listing = cls._find(cls._root(root))
        absent = set(_absent(folder, [name for name, _ in listing.images]))
        there: list[tuple[Split, str, int]] = [
            (s, *row) for s in _SPLITS for row in listing.of(s) if row[0] not in absent
        ]
        findings = list(cls._miscounted(listing))
        findings += [Finding("error", "the file is missing", name) for name in sorted(absent)]
        if content:
            looks = look_at_all([folder / name for _, name, _ in there], max_pixels)
            findings += findings_of([Seen(*r, look) for r, look in zip(there, looks, strict=True)])
        sizes: dict[Split, list[int]] = {
            split: list(Counter(number for one, _, number in there if one == split).values())
            for split in _SPLITS
        }
        return Survey(folder, layout, sizes, findings)

    @classmethod
    def _root(cls, root: str | None) -> Path:
        return data_dir(cls.name) if root is None else given_folder("dataset.root=", root)

    @classmethod
    def _find(cls, root: Path) -> _Found:
        """Read the layout that is there; if it is incomplete, raise and say what is missing."""
        partly: list[_Partly] = []
        for layout in cls.layouts():
            for folder in (root / inside for inside in layout.inside):
                lacking = [one for one in layout.needs if not any(map(_holds(folder), one))]
                if not lacking:
                    return _Found(layout.title, folder.resolve(), _checked(layout.read(folder)))
                share = 1 - len(lacking) / len(layout.needs)
                partly.append(_Partly(share, layout, folder, _one_of_each(lacking)))
        nearest = max(partly, key=lambda one: one.share)  # the first of equal ones
        if nearest.share > 0:
            hint = nearest.layout.hint and f" ({nearest.layout.hint})"
            problem = (
                f"looks like {nearest.layout.title}, but in {str(nearest.folder)!r} there is no "
                f"{nearest.lacking}{hint}"
            )
        elif root.is_dir():
            ways = [f"{_one_of_each(one.needs)} ({one.title})" for one in cls.layouts()]
            inner = sorted({i for layout in cls.layouts() for i in layout.inside if i})
            problem = f"has none of these, nor has {', '.join(inner)} in it: {'; '.join(ways)}"
        else:
            problem = "is not a folder" if root.exists() else "does not exist"
        raise UserError(f"{cls.name}: dataset.root={str(root)!r} {problem}\n{cls._advice(root)}")

    @classmethod
    def _advice(cls, root: Path) -> str:
        dead = [source.filename for source in cls.sources if not source.urls]
        return (
            f"download it with: {data_command('download', cls.name, root)}"
            + f" (no address has {' and '.join(dead)} any more)" * bool(dead)
            + "\n"
            f"or put {' and '.join(map(str, cls.sources))} into {str(root)!r}: that command then "
            "verifies and unpacks them"
        )

    def _check_complete(self, names: list[str]) -> None:
        absent = _absent(self.folder, names)
        if absent:
            raise UserError(
                f"{self.name}: of {len(names):,} listed images {len(absent):,} are missing in "
                f"{str(self.folder)!r}, {self.layout}: {some(absent)} (links that lead out of it "
                "do not count); was the download or the unpacking interrupted?\n"
                f"to see them all: {data_command('verify', self.name, self.root)}\n"
                "to download it again, move that folder away, then: "
                f"{data_command('download', self.name, self.root)}"
            )

    def _check_counts(self, listing: Listing) -> None:
        classes = len({number for _, number in listing.of(self.split)})
        if classes < _LEAST_CLASSES[self.split]:
            raise UserError(
                f"{self.name}: {str(self.folder)!r}, {self.layout}, lists "
                f"{counted(classes, 'class', 'classes')} for split {self.split}, but needs "
                f"{_LEAST_CLASSES[self.split]}\n{self._advice(self.root)}"
            )
        for finding in self._miscounted(listing):
            if finding.where == self.split:
                text = f"{self.name}: {str(self.folder)!r}, split {self.split}: {finding.what}"
                warnings.warn(text, stacklevel=3)

    @classmethod
    def _miscounted(cls, listing: Listing) -> Iterator[Finding]:
        for split in _SPLITS:
            images = listing.of(split)
            count = Count(len(images), len({number for _, number in images}))
            if count != cls.table[split]:
                what = f"{count}, but published results are for {cls.table[split]}"
                yield Finding("error", what, split)

    def _digest(self) -> str:
        whole = hashlib.sha256(self.split.encode())
        for name, label in zip(self.files, self.labels.tolist(), strict=True):
            try:
                size = os.stat(f"{self.folder}/{name}").st_size  # noqa: PTH116 60,000 Paths are slow
            except OSError as error:
                raise UserError(f"{self.name}: {name!r}: {error.strerror}") from error
            whole.update(os.fsencode(name) + f"\0{label}\0{size}\0".encode())
        return whole.hexdigest()[:16]


# ---- reading annotations


def rows(file: Path, integers: int, header: bool = False) -> Iterator[tuple[list[int], str]]:
    """Yield the integers that start each line, and the rest of it.

    Raises:
        UserError: the file cannot be read, or a line has another form; says which.
    """
    for number, line in enumerate(lines_of(file), 1):
        parts = line.split(maxsplit=integers)
        if not parts or (header and number == 1):
            continue
        values = [int(part) for part in parts[:integers] if re.fullmatch("-?[0-9]{1,18}", part)]
        if len(values) < integers:
            raise UserError(
                f"{str(file)!r}, line {number}: {line[:80]!r} must begin with {integers} integers"
            )
        yield values, "".join(parts[integers:]).strip()


def by_number(file: Path, pairs: Iterable[tuple[int, _T]]) -> dict[int, _T]:
    """Return the value of each number of a file.

    Raises:
        UserError: a number has several values.
    """
    found: dict[int, _T] = {}
    for number, thing in pairs:
        if found.setdefault(number, thing) != thing:
            raise UserError(f"{str(file)!r}: {number} is both {found[number]!r} and {thing!r}")
    return found


def lines_of(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file; only ``\\n`` ends one, as names may hold other breaks."""
    try:
        return read_text(file, encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(file)!r} cannot be read: {error}") from error


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"folder {str(folder)!r} cannot be listed: {error.strerror}") from error


def _checked(listing: Listing) -> Listing:
    """Refuse paths outside of the folder, paths listed twice, and classes without a name."""
    counts = Counter(name for name, _ in listing.images)
    bad = [name for name in counts if not _is_plain(name)]
    if bad:
        raise UserError(f"the annotations have invalid file names of images: {some(bad)}")
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise UserError(f"the annotations list {len(twice)} images twice: {some(twice)}")
    nameless = {number for _, number in listing.images} - set(listing.names)
    if nameless:
        raise UserError(f"the annotations use classes that have no name: {sorted(nameless)[:5]}")
    return listing


def _is_plain(name: str) -> bool:
    """Return whether a path stays below its folder."""
    foreign = "\0" if os.sep == "/" else "\0\\:"  # a drive, on Windows
    return not {"", ".", ".."} & set(name.split("/")) and not set(foreign) & set(name)


# ---- what is on disk


def _holds(folder: Path) -> Callable[[str], bool]:
    """Return a function that says whether a glob pattern matches in the folder."""
    return lambda pattern: next(iter(folder.glob(pattern)), None) is not None


def _absent(folder: Path, names: Sequence[str]) -> list[str]:
    """Return which files do not exist; lists each folder once instead of checking each file."""
    there = {parent: _files(folder, parent) for parent in {n.rpartition("/")[0] for n in names}}
    return [name for name in names if name.rpartition("/")[2] not in there[name.rpartition("/")[0]]]


def _files(folder: Path, parent: str) -> set[str]:
    if not _is_within(folder, folder / parent):
        return set()
    try:
        with os.scandir(folder / parent) as found:
            return {entry.name for entry in found if _is_file(folder, entry)}
    except OSError:
        return set()


def _is_file(folder: Path, entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() and (not entry.is_symlink() or _is_within(folder, entry.path))
    except OSError:  # links in a circle
        return False


def _is_within(folder: Path, path: str | Path) -> bool:
    # Links in an archive must not reach other files.
    try:
        return Path(path).resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # links in a circle
        return False


# ---- small things


def _one_of_each(needs: Sequence[Sequence[str]]) -> str:
    return ", ".join(" or ".join(one) for one in needs)
