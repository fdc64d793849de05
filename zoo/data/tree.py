"""Which files of a folder count as images, for data sets and for folders to be embedded."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.data.decoding import extensions
from zoo.errors import UserError


def images_under(root: Path, folder: str | Path, stray: list[str]) -> list[str]:
    """Return the images in a folder and its subfolders, as sorted paths below ``root`` with ``/``.

    An image is a file that has an image's extension and is not hidden. Everything else is ignored
    and added to ``stray``, including symbolic links to folders or out of ``root``.

    Args:
        root: a resolved path.
        folder: ``root``, or a folder in it.
        stray: the list to which ignored names are added; those of folders end in ``/``.

    Raises:
        UserError: a folder cannot be listed.
    """
    names = []
    pending = [os.fspath(folder)]
    while pending:
        for entry in entries(pending.pop()):
            if is_folder(entry):
                pending.append(entry.path)
            elif is_image(root, entry):
                names.append(name_of(root, entry))
            else:
                stray.append(name_of(root, entry))
    return sorted(names)


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; raise a UserError if it cannot be listed."""
    try:
        with os.scandir(os.fspath(folder)) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"folder {str(folder)!r} cannot be listed: {error.strerror}") from error


def name_of(root: Path, entry: os.DirEntry[str]) -> str:
    """Return the path below ``root``, with ``/`` between its parts and at the end of a folder."""
    name = entry.path[len(str(root)) :].lstrip(os.sep).replace(os.sep, "/")
    return name + "/" * entry.is_dir(follow_symlinks=False)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder to search: neither a symbolic link nor hidden."""
    return entry.is_dir(follow_symlinks=False) and not _is_hidden(entry.name)


def is_image(root: Path, entry: os.DirEntry[str]) -> bool:
    """Return whether it is an image: by its extension, not hidden, and within ``root``."""
    if _is_hidden(entry.name) or not entry.name.lower().endswith(extensions()):
        return False
    try:
        if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
            return False
        return entry.is_file()
    except (OSError, RuntimeError):  # circular links
        return False


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"
