"""ImageFolder: images in one folder per class."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.base import Finding, Split, Survey
from zoo.data.decoding import MAX_PIXELS, load_rgb
from zoo.data.lookalikes import spelt_alike
from zoo.data.tree import entries, images_under, is_folder, name_of
from zoo.errors import UserError
from zoo.support.text import counted

from ._images import Scan, check_split, forget_others, hold_out, scan
from ._looks import Seen, findings_of, look_at_all, some

_SPLITS: tuple[Split, Split] = ("train", "test")
_LEAST_CLASSES: dict[Split, int] = {"train": 2, "test": 1}
_BATCH = 12  # classes of a batch in configs/base/folder.yaml
_LISTED = 20  # names of unusable images in an error
_SECRET = (
    "the content has changed since a run read it, though size and times have not; earlier results "
    "are for other images"
)
_LAYOUTS = (
    "a folder that holds train/<class>/*.jpg and test/<class>/*.jpg, or <class>/*.jpg, whose "
    "classes are then divided"
)


class ImageFolder:
    """Images in one folder per class, with given train/ and test/ splits or divided by class.

    There are two layouts: ``root/train/<class>/`` and ``root/test/<class>/``, with no class in
    both; or ``root/<class>/``, where ``test_share`` of the classes, drawn by ``split_seed``, are
    for testing. The folder of a class may have subfolders.

    An image is a file that has an image's extension and is not hidden. Everything else is ignored
    and listed in ``stray``: ``.DS_Store``, ``._x.jpg``, ``Thumbs.db``, ``__MACOSX/``, text, and
    symbolic links to a folder or out of ``root``, so that links in an archive cannot reach other
    files.

    Every image of both splits is decoded before training; images that have not changed (size,
    modification time, ctime) are not read again at the next start, except by ``zoo data verify``.
    Two spellings of one class, such as ``Robin`` and ``robin``, give a warning if they are in both
    splits or look the same. Images of any mode become RGB: rotated by EXIF, with transparency over
    white, and deep gray scaled to 8 bits.

    Args:
        root: the folder, ``~`` allowed.
        split: ``"train"`` or ``"test"``.
        test_share: share of the classes for testing, if there are no train/ and test/.
        split_seed: another number gives another division.
        max_pixels: larger images are refused, as a small file can decode to gigabytes.
        skip_unreadable: leave out images that cannot be used, with a warning, instead of stopping.

    Attributes:
        labels: int64 array (N,), ascending from 0.
        class_names: names of the folders, sorted.
        files: the images, as paths below ``root`` with ``/``.
        stray: ignored files, likewise; folders end in ``/``.

    Raises:
        UserError: there is no such folder; or, reported in one message: another layout, a class in
            both train/ and test/, fewer than two classes for training or none for testing, unusable
            images by name.
    """

    def __init__(
        self,
        root: str,
        split: Split,
        test_share: float = 0.5,
        split_seed: int = 0,
        max_pixels: int = MAX_PIXELS,
        skip_unreadable: bool = False,
    ) -> None:
        check_split(split)
        if not 0 < test_share < 1:
            raise UserError(f"dataset.test_share is {test_share}; it must be between 0 and 1")
        self.root = _existing(root)
        self.split = split
        self.test_share, self.split_seed, self.max_pixels = test_share, split_seed, max_pixels
        found, checked = _look(self.root, test_share, split_seed, max_pixels)
        self.stray = found.stray
        _report_stray(self.root, found.stray)
        usable, empty = _usable(found, checked)
        bad = {} if skip_unreadable else checked.unreadable
        if found.problems or bad or len(usable[split]) < _LEAST_CLASSES[split]:
            raise UserError(_all_wrong(self.root, found, usable, bad))
        _report_left_out(self.root, checked.unreadable, empty)
        _report_alike(self.root, usable)
        classes = usable[split]
        self.class_names = [_printable(name) for name in classes]
        self.files = list(_files(classes))
        self.labels: NDArray[np.int64] = np.repeat(
            np.arange(len(classes)), [len(files) for files in classes.values()]
        )
        self._fingerprint = _digest(split, self.files, checked.digests)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return load_rgb(self.root / self.files[index], self.max_pixels), int(self.labels[index])

    def fingerprint(self) -> str:
        """Return a digest of the split, and of names and content of its images at opening."""
        return self._fingerprint

    def verify(self) -> list[str]:
        """Return a line for each finding of :meth:`survey`, its severity first."""
        found = self.survey(str(self.root), self.test_share, self.split_seed, self.max_pixels)
        return [str(one) for one in found.findings]

    @classmethod
    def survey(
        cls,
        root: str,
        test_share: float = 0.5,
        split_seed: int = 0,
        max_pixels: int = MAX_PIXELS,
    ) -> Survey:
        """Read every file again, whatever was stored about it.

        Findings are an incomplete layout, fewer training classes than a batch of the shipped
        configs takes, classes that are in both train and test or seem to be one
        class in several spellings, unusable images, files with the same content (a warning if they
        are in both splits or in different classes), gray or tiny images, and ignored files and
        folders. An image that has changed, though neither its size nor a time shows it, is a
        warning; its new content is used from then on.

        Args:
            root: the folder, as for the constructor.
            test_share: likewise.
            split_seed: likewise.
            max_pixels: larger images cannot be used.

        Raises:
            UserError: there is no such folder.
        """
        folder = _existing(root)
        found = _find(folder, test_share, split_seed)
        there = [
            (split, name, label)
            for split, classes in found.classes.items()
            for label, names in classes.items()
            for name in names
        ]
        looks = look_at_all([folder / name for _, name, _ in there], max_pixels)
        seen = [Seen(*row, look) for row, look in zip(there, looks, strict=True)]
        bad = {one.name for one in seen if one.look.wrong}
        secret = forget_others(folder, {one.name: one.look.digest for one in seen})
        usable = {
            split: [name for name, files in classes.items() if not bad.issuperset(files)]
            for split, classes in found.classes.items()
        }
        problems = [
            *found.problems,
            *(
                _shortage(split, usable[split], [])
                for split in _SPLITS
                if split != found.missing and len(usable[split]) < _LEAST_CLASSES[split]
            ),
        ]
        findings = [Finding("error", f"the folder {problem}", ".") for problem in problems]
        findings += [
            Finding("warning", "a class without usable images", name)
            for split in _SPLITS
            for name in found.classes[split]
            if name not in usable[split]
        ]
        findings += _few(usable)
        findings += [alike.finding() for alike in spelt_alike(found.classes)]
        findings += findings_of(seen)
        findings += [Finding("warning", _SECRET, name) for name in secret if name not in bad]
        findings += [Finding("note", "ignored, not an image of a class", n) for n in found.stray]
        sizes: dict[Split, list[int]] = {
            split: [sum(f not in bad for f in files) for files in classes.values()]
            for split, classes in found.classes.items()
        }
        return Survey(folder, found.layout, sizes, findings)


Classes = dict[str, list[str]]  # by name of the class, its files as paths from root


class _Found(NamedTuple):
    """The content of the folder before opening files; ``missing`` is a split without a folder."""

    layout: str
    classes: dict[Split, Classes]
    stray: list[str]
    problems: list[str]
    missing: Split | None


def _look(root: Path, test_share: float, split_seed: int, max_pixels: int) -> tuple[_Found, Scan]:
    found = _find(root, test_share, split_seed)
    names = [*_files(found.classes["train"]), *_files(found.classes["test"])]
    return found, scan(root, names, max_pixels)


def _existing(root: str) -> Path:
    try:
        folder = Path(root).expanduser()
        if root and folder.is_dir():
            return folder.resolve()
        problem = "is not a folder" if root and folder.exists() else "does not exist"
    except (OSError, RuntimeError) as error:  # no permission; ~name of an unknown user
        raise UserError(f"dataset.root={root!r}: {error}; set it to {_LAYOUTS}") from error
    here = "" if folder.is_absolute() else f" (seen from {str(Path.cwd())!r})"
    raise UserError(f"dataset.root={root!r} {problem}{here}; set it to {_LAYOUTS}")


def _find(root: Path, test_share: float, split_seed: int) -> _Found:
    present = [s for s in _SPLITS if (root / s).is_dir() and not (root / s).is_symlink()]
    stray: list[str] = []
    problems: list[str] = []
    for name in () if present else _alike(root):
        problems.append(f"has a folder {name}/, which counts as a class; is it {name.lower()}/?")
    missing = next((s for s in _SPLITS if s not in present), None) if present else None
    if missing:
        problems.append(
            f"has a folder {present[0]}/ but not the other of train/ and test/ (a symbolic link "
            "does not count)"
        )
    if present:
        stray += [name_of(root, e) for e in entries(root) if e.name not in _SPLITS]
        train, test = ({} if s == missing else _classes(root, s, stray) for s in _SPLITS)
        problems += _in_both(train, test)
    else:
        train = _classes(root, "", stray)
        held_out = hold_out([name for name in train if train[name]], test_share, split_seed)
        test = {name: train.pop(name) for name in sorted(held_out)}
    layout = "folders train and test of classes" if present else "one folder of classes, divided"
    return _Found(layout, {"train": train, "test": test}, stray, problems, missing)


def _alike(root: Path) -> list[str]:
    """Return the folders whose names differ from a split's only in capital letters."""
    return [e.name for e in entries(root) if e.name.lower() in _SPLITS and e.is_dir()]


def _classes(root: Path, within: str, stray: list[str]) -> Classes:
    """Return the classes of ``root/within``; everything else there is added to ``stray``."""
    classes = {}
    for entry in entries(root / within):
        if is_folder(entry):
            classes[entry.name] = images_under(root, entry.path, stray)
        else:
            stray.append(name_of(root, entry))
    return classes


def _in_both(train: Classes, test: Classes) -> list[str]:
    both = [name for name in train if name in test]
    if not both:
        return []
    classes = counted(len(both), "class", "classes")
    return [f"has {classes} both in train/ and in test/: {some(both)}; keep each in one of them"]


def _usable(found: _Found, checked: Scan) -> tuple[dict[Split, Classes], list[str]]:
    """Return the classes with their usable images, and which classes have none."""
    classes: dict[Split, Classes] = {"train": {}, "test": {}}
    empty = []
    for split in _SPLITS:
        for name, files in found.classes[split].items():
            usable = [file for file in files if file in checked.digests]
            if usable:
                classes[split][name] = usable
            else:
                empty.append(name)
    return classes, empty


def _all_wrong(
    root: Path, found: _Found, usable: dict[Split, Classes], unreadable: dict[str, str]
) -> str:
    """Return all that is wrong with a folder, for both splits."""
    short = [
        _shortage(split, list(usable[split]), found.stray)
        for split in _SPLITS
        if split != found.missing and len(usable[split]) < _LEAST_CLASSES[split]
    ]
    lines = [f"{str(root)!r} {problem}" for problem in found.problems + short]
    if found.missing or short:
        lines[-1] += f"; set dataset.root to {_LAYOUTS}"
    if unreadable:
        images = counted(len(unreadable), "image")
        listed = [f"  {name!r}: {why}" for name, why in unreadable.items()]
        if len(listed) > _LISTED:
            listed[_LISTED:] = [f"  and {len(listed) - _LISTED} more"]
        lines += [f"{str(root)!r} has {images} that cannot be used:", *listed]
        lines.append("delete them, or set dataset.skip_unreadable=true to leave them out")
    return "\n".join(lines)


def _shortage(split: Split, classes: list[str], stray: list[str]) -> str:
    number = counted(len(classes), "class", "classes")
    named = f" ({some(classes)})" if classes else ""
    ignored = f"; ignored: {some(stray)}" if stray else ""
    least = f"needed: at least {_LEAST_CLASSES[split]}"
    return f"has {number} with images for split {split}{named}, {least}{ignored}"


def _few(usable: dict[Split, list[str]]) -> list[Finding]:
    """Return a note if the shipped configs need more training classes than there are."""
    train, test = len(usable["train"]), len(usable["test"])
    if not _LEAST_CLASSES["train"] <= train < _BATCH:
        return []
    what = (
        f"{counted(train, 'training class', 'training classes')} and {test} for testing: a batch "
        f"of ice_folder takes {_BATCH} classes, so add sampler.classes={train} or less to its "
        "command"
    )
    return [Finding("note", what, "train")]


def _report_stray(root: Path, stray: list[str]) -> None:
    if stray:
        ignored = counted(len(stray), "stray file or folder", "stray files or folders")
        warnings.warn(f"{str(root)!r}: {ignored} ignored: {some(stray)}", stacklevel=3)


def _report_left_out(root: Path, unreadable: dict[str, str], empty: list[str]) -> None:
    if unreadable:
        images = counted(len(unreadable), "unusable image")
        text = f"{str(root)!r}: {images} left out: {some([*unreadable])}"
        warnings.warn(text, stacklevel=3)
    if empty:
        classes = counted(len(empty), "class without images", "classes without images")
        warnings.warn(f"{str(root)!r}: {classes} ignored: {some(empty)}", stacklevel=3)


def _report_alike(root: Path, usable: dict[Split, Classes]) -> None:
    for alike in spelt_alike(usable):
        if alike.across() or alike.is_one_text():
            warnings.warn(f"{str(root)!r}: {alike}", stacklevel=3)


def _digest(split: str, files: list[str], digests: dict[str, str]) -> str:
    # No absolute paths and no times: the same files elsewhere are the same data.
    whole = hashlib.sha256(split.encode())
    for name in files:
        whole.update(os.fsencode(name) + b"\0" + digests[name].encode())
    return whole.hexdigest()[:16]


def _files(classes: Classes) -> Iterator[str]:
    return (file for files in classes.values() for file in files)


def _printable(name: str) -> str:
    # A file name of undecodable bytes has lone surrogates, which cannot be written to a report.
    return os.fsencode(name).decode("utf-8", "backslashreplace")
