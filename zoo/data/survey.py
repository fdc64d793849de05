"""Data sets on this machine: what exists, what is wrong with it, and how to download the rest."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from zoo import registry
from zoo.base import (
    Finding,
    ImageDataset,
    Source,
    Split,
    Survey,
    cache_dir,
    data_command,
    data_dir,
    given_folder,
)
from zoo.data.download import UnreachableError, fetch
from zoo.data.lookalikes import spelt_alike
from zoo.data.unpack import unpack
from zoo.errors import UserError, blaming
from zoo.progress import Reporter

_SPLITS: tuple[Split, ...] = get_args(Split)
_LISTED = 5  # findings in an error


def survey(name: str, root: str | None = None) -> Survey:
    """Check every file of a data set, by its ``survey`` or else its ``verify``.

    ``root`` is the argument of its constructor; None gives none.

    Raises:
        UserError: there is no such data set, or the folder has nothing of it.
    """
    arguments = {} if root is None else {"root": root}
    problems = registry.problems("datasets", name, arguments)
    if [p.argument for p in problems] == ["root"] and root is None:
        raise UserError(f"{name} has no default folder: give its folder with --root")
    if problems:
        raise UserError("\n".join(": ".join(filter(None, p)) for p in problems))
    target = registry.load("datasets", name)
    with blaming(f"verifying {name}"):
        own = getattr(target, "survey", None)
        found: Survey = _ask(name, arguments) if own is None else own(**arguments)
        more = [*_nothing_to_find(found), *_kept(name, target, arguments)]
        return found._replace(findings=[*found.findings, *more])


def download(
    name: str,
    root: str | None = None,
    urls: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Survey:
    """Download a data set unless it is there; an interrupted download is resumed.

    Archives are unpacked to a temporary folder that is then renamed, so that an existing folder is
    complete. They are kept. Files that were put there by hand are also verified and unpacked.

    Args:
        name: as ``zoo list datasets`` shows it.
        root: the folder for it; by default the data set's default folder.
        urls: used instead of the known addresses: either the address of a folder with all files,
            ending in ``/``, or that of one file, ending in its name if there are several.
        reporter: shows bars if it writes to a terminal.

    Raises:
        UnreachableError: no address has some of the files; the message names them all.
        UserError: nothing can be downloaded for this data set; a wrong file is in the way; the disk
            cannot hold it.
    """
    reporter = reporter or Reporter()
    target = registry.load("datasets", name)
    sources = _mirrored(name, getattr(target, "sources", ()), urls)
    folder = data_dir(name) if root is None else given_folder("--root ", root)
    before = _look(target, folder)
    if before is not None:
        _check_whole(name, before)
        reporter.say(f"{name} is there already")
        return before
    _get(name, sources, folder, reporter)
    found = _look_again(target, sources, folder)
    _check_whole(name, found)
    return found


def size(folder: Path) -> int:
    """Return the size of all files in a folder in bytes; links are not followed."""
    total, pending = 0, [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _ask(name: str, arguments: dict[str, Any]) -> Survey:
    """Survey a data set that has no ``survey`` of its own."""
    import numpy as np

    built = _build(name, arguments)
    lines = dict.fromkeys(line for data in built.values() for line in data.verify())
    sizes: dict[Split, list[int]] = {
        split: np.bincount(data.labels, minlength=len(data.class_names)).tolist()
        for split, data in built.items()
    }
    names: dict[Split, Sequence[str]] = {s: data.class_names for s, data in built.items()}
    findings = [*map(_finding, lines), *(alike.finding() for alike in spelt_alike(names))]
    return Survey(None, "", sizes, findings)


def _build(name: str, arguments: dict[str, Any]) -> dict[Split, ImageDataset]:
    return {
        split: registry.assemble("datasets", name, arguments, {"split": split}) for split in _SPLITS
    }


def _nothing_to_find(found: Survey) -> list[Finding]:
    sizes = [size for size in found.sizes.get("test", ()) if size]
    if not sizes or max(sizes) > 1:
        return []
    what = "one image per class, so that none can be found and Recall@K is 0 for every network"
    return [Finding("error", what, "test")]


def _kept(name: str, target: Any, arguments: dict[str, Any]) -> list[Finding]:
    """Compare the images that ``images.cache`` has stored with their sources."""
    folder = cache_dir() / "images"
    if not any(folder.glob(f"{glob.escape(target.__name__)}-*.npy")):
        return []
    from zoo.data import cache

    with warnings.catch_warnings():  # the findings already include the data set's warnings
        warnings.simplefilter("ignore")
        try:
            built = _build(name, arguments)
        except UserError:  # no run could use it either
            return []
        return [finding for data in built.values() for finding in cache.compare(data)]


def _finding(line: str) -> Finding:
    match = re.fullmatch(r"(?:(error|warning|note): )?(?:'([^']*)': )?(.*)", line, re.DOTALL)
    assert match is not None  # it matches anything
    severity: Any = match[1] or "error"
    return Finding(severity, match[3], match[2] or "")


def _mirrored(name: str, sources: Sequence[Source], urls: Sequence[str]) -> list[Source]:
    """Return the sources with the user's addresses instead of their own."""
    if not sources:
        known = [n for n in registry.names("datasets") if _sources(n)]
        raise UserError(f"{name} cannot be downloaded, only {', '.join(known)} can")
    found: dict[str, list[str]] = {source.filename: [] for source in sources}
    for url in urls:
        if url.endswith("/"):
            for filename in found:
                found[filename].append(url + filename)
            continue
        owners = [one for one in found if urlsplit(url).path.endswith(f"/{one}")]
        if not owners and len(found) > 1:
            raise UserError(
                f"--url {url}: which of {', '.join(found)} is it? The address of one file must end "
                "in its name, that of a folder with all files in /"
            )
        found[(owners or list(found))[0]].append(url)
    return [replace(one, urls=tuple(found[one.filename]) or one.urls) for one in sources]


def _sources(name: str) -> Sequence[Source]:
    try:
        sources: Sequence[Source] = getattr(registry.load("datasets", name), "sources", ())
    except UserError:  # a broken plugin
        return ()
    return sources


def _look(target: Any, folder: Path) -> Survey | None:
    try:
        found: Survey = target.survey(str(folder), content=False)
    except UserError:
        return None
    return found


def _look_again(target: Any, sources: Sequence[Source], folder: Path) -> Survey:
    """Survey the folder after a download; if nothing is found, say what is in the way."""
    try:
        found: Survey = target.survey(str(folder), content=False)
    except UserError as error:
        holds = [str(folder / one.holds) for one in sources if one.holds]
        there = " and ".join(map(repr, filter(os.path.lexists, holds)))
        if not there:
            raise
        advice = f"{there} is in the way: move it away, and run again"
        raise UserError(f"{str(error).splitlines()[0]}\n{advice}") from error
    return found


def _get(name: str, sources: Sequence[Source], folder: Path, reporter: Reporter) -> None:
    """Download and unpack what is missing."""
    failures = []
    for source in sources:
        into = folder / source.holds if source.holds else None
        if into is not None and os.path.lexists(into):
            continue
        try:
            path = fetch(source, folder, reporter)
        except UnreachableError as error:
            failures.append(str(error))
            continue
        reporter.say(f"{path} has the right {' and '.join(d.split()[0] for d in source.digests())}")
        if into is not None:
            limits = {"most_bytes": source.most_bytes, "most_files": source.most_files}
            unpack(path, into, **limits, inner=source.holds, reporter=reporter)
            reporter.say(f"{into} is unpacked; {path.name} can be deleted")
    if failures:
        raise UnreachableError(
            "\n".join([*failures, f"then: {data_command('download', name, folder)}"])
        )


def _check_whole(name: str, found: Survey) -> None:
    errors = [one for one in found.findings if one.severity == "error"]
    if not errors:
        return
    lines = [f"  {one.where!r}: {one.what}" for one in errors[:_LISTED]]
    if len(errors) > _LISTED:
        lines.append(f"  and {len(errors) - _LISTED:,} more")
    title = f"{name}: {str(found.folder)!r}, {found.layout}, is not complete"
    advice = "  move that folder away, and run again to download it again"
    raise UserError("\n".join([title, *lines, advice]))
