"""Check that the files of a run are those that it wrote: digests of files and records, names.

They guard against accidents and mix-ups: a flipped bit, a file copied from another run, an edited
number. They are no defence against somebody who computes the digests again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zoo.config.schema import Config
from zoo.support.files import file_digest

FILES = "files"  # in a record: the SHA-256 of each file that belongs to it, by name
SEAL = "seal"  # in a record: the SHA-256 of the rest of it
WHAT_TO_DO = "restore the file, or run again with --restart"


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record, as JSON reads it back, with the digest of its content."""
    content = json.loads(json.dumps({k: value for k, value in record.items() if k != SEAL}))
    return {**content, SEAL: _digest_of(content)}


def check_seal(record: Mapping[str, Any]) -> None:
    """Raise a ValueError if a record was changed after it was sealed; old records have no seal."""
    if (SEAL in record or FILES in record) and record != seal(record):
        raise ValueError("it is no longer what the run wrote")


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of those files that exist, by name; raise an OSError if that fails."""
    return {name: file_digest(folder / name) for name in names if (folder / name).is_file()}


def of_run(config: Config) -> dict[str, Any]:
    """Return what a checkpoint says about its run: the experiment and the seed."""
    return {"name": config.run_name(), "digest": config.digest(), "seed": config.seed}


def same_run(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two are of one run, by their ``digest`` and ``seed``; names may differ."""
    return all(one.get(key) == other.get(key) for key in ("digest", "seed"))


def _digest_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
