"""Weight files from others: downloaded, read without running code from them, and fully matched."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UserError, one_of
from zoo.support.files import check_stored, open_regular
from zoo.support.near import near

from ._safetensors import is_safetensors, read_safetensors

_ON_A_HUB = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors")
_SHOWN = 10  # names listed for each kind of mismatch; a wrong file has hundreds


def download(url: str) -> Path:
    """Return the file of ``url`` in torch.hub's folder, downloaded unless it is there already.

    A name that ends in ``-<hex>.<suffix>`` has the first digits of the file's SHA-256, by the
    convention of torch.hub; the download is checked against them.

    Raises:
        UserError: the download failed; says which file to put where.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if path.is_file():
        return path
    digest = re.search(r"-([0-9a-f]{8,})\.\w+$", path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), digest and digest[1], progress=False)
    except (OSError, RuntimeError) as error:  # no network, full disk; wrong digest
        raise UserError(
            f"weights could not be downloaded: {error}\n"
            f"  get       {url}\n"
            f"  put it in {path.parent}"
            + (f"\n  its SHA-256 begins with {digest[1]}" if digest else "")
            + "\n  or name a file that you have: model.backbone.weights=<file>"
        ) from None
    return path


def is_pretrained(weights: str | None) -> bool:
    """Return whether these are the public weights of a network, not a file or a repository."""
    return weights in ("imagenet", "pretrained")


def located(weights: str) -> str | Path:
    """Return the file of ``"hf:owner/name"``, downloaded unless it is there; others unchanged.

    ``"hf:owner/name/weights.safetensors"`` names a file; by default it is the first there is of
    model.safetensors, pytorch_model.bin and open_clip_model.safetensors.

    Raises:
        UserError: huggingface_hub is not installed; there is no such repository or file, or it
            cannot be downloaded.
    """
    if not weights.startswith("hf:"):
        return weights
    parts = weights.removeprefix("hf:").split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise UserError(f"weights {weights}: write hf:owner/name, or hf:owner/name/file")
    try:
        hub = importlib.import_module("huggingface_hub")  # type checkers may not find it
    except ImportError:
        raise UserError(
            f"weights {weights}: need a package that is not installed; pip install huggingface_hub"
        ) from None
    repository, names = "/".join(parts[:2]), parts[2:] or _ON_A_HUB
    error: Exception | None = None
    for name in names:
        try:
            return Path(hub.hf_hub_download(repository, name))
        except Exception as found:  # noqa: BLE001 - of the hub, of its transport, of the disk
            error = error or found
    reason = " ".join(str(error).split())[:300]
    raise UserError(
        f"weights {weights}: could not be downloaded: {type(error).__name__}: {reason}\n"
        f"  get       {hub.constants.ENDPOINT}/{repository}\n"
        "  and name the file in weights"
    ) from error


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU.

    The file may be one of ``torch.save`` or of safetensors, whatever its extension. The dictionary
    may be wrapped as ``{"state_dict": …}`` or ``{"model": …}``, and the prefixes of its names from
    DataParallel, ``module.``, and ``torch.compile``, ``_orig_mod.``, are removed. Nothing in the
    file is executed.

    Raises:
        UserError: it is not a file, or not one of these; it holds objects, no tensors, or tensors
            that cannot be weights.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        what = "a folder, not a file" if path.is_dir() else "no such file"
        if not path.is_absolute():
            what += f" (seen from {str(Path.cwd())!r})"
        raise UserError(f"weights {path}: {what}; name a file of torch.save or safetensors")
    state = _unwrap(_read(path))
    if not isinstance(state, Mapping) or not all(map(_is_entry, state.items())):
        raise UserError(f"weights {path}: holds no plain state_dict, a mapping of names to tensors")
    if not state:
        raise UserError(f"weights {path}: holds no tensors at all")
    for name, value in state.items():
        fault = _fault(value)
        if fault:
            raise UserError(f"weights {path}: {name!r} {fault}; download or save it again")
    return _without_prefixes(state)


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors" or is_safetensors(path):
            return read_safetensors(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"weights {path}: cannot be read as safetensors: {reason}; download it again"
        ) from None
    try:
        if _is_zip(path):  # since torch 1.6
            check_stored(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - of a damaged file it raises about any kind
        raise UserError(f"weights {path}: {_why_unreadable(error)}") from None


def _is_zip(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(4) == b"PK\3\4"


def load_matching(
    module: nn.Module,
    state: Mapping[str, Tensor],
    source: str | Path,
    *,
    ignore: Iterable[str] = (),
    rename: Callable[[str], str] | None = None,
) -> None:
    """Copy ``state`` into ``module``: every name and shape must agree.

    Args:
        module: takes the values; after an error it may have some of them, so discard it.
        state: the values by name.
        source: where they come from, for the message.
        ignore: prefixes of names that need not be in ``module``, for a removed classifier.
        rename: from the names of ``state`` to those of ``module``.

    Raises:
        UserError: lists what is missing, unexpected or of another shape.
    """
    if rename is not None:
        state = {rename(name): value for name, value in state.items()}
    state = {name: v for name, v in state.items() if not name.startswith(tuple(ignore))}
    expected = module.state_dict()
    wrong = [n for n, v in state.items() if n in expected and v.shape != expected[n].shape]
    whole = [n for n, v in state.items() if _is_whole(v) and not _is_whole(expected.get(n, v))]
    # Not strict=True: it would stop at the first kind of mismatch. The modules' hooks still run:
    # they know the names of older files, and BatchNorm's adds a missing num_batches_tracked.
    fitting = {n: value for n, value in state.items() if n not in wrong and n not in whole}
    missing, unexpected = module.load_state_dict(fitting, strict=False)
    absent = [n for n in missing if n not in wrong and n not in whole]
    faults = {
        "missing in the file": absent,
        "unknown to the network": unexpected,
        "of another shape": [
            f"{n} {tuple(state[n].shape)}, not {tuple(expected[n].shape)}" for n in wrong
        ],
        "whole numbers, not floats": [f"{n} {state[n].dtype}" for n in whole if n not in wrong],
    }
    if any(faults.values()):
        matched = len(fitting) - len(unexpected)
        lines = [*_listing(faults), *_nearest(unexpected, absent)]
        raise UserError("\n".join([_headline(source, matched, len(expected)), *lines]))


def _is_whole(value: Tensor) -> bool:
    return not value.is_floating_point()


def _nearest(unknown: list[str], missing: list[str]) -> list[str]:
    """Return a line that suggests the meaning of the first unknown name that resembles others."""
    wanted = set(missing)
    for name in unknown if wanted else ():
        ends = (name[dot.end() :] for dot in re.finditer(r"\.", name))
        inner = next((end for end in ends if end in wanted), None)
        if inner is not None:
            prefix = name.removesuffix(inner)
            return [f"  nearest: {name} would be {inner} without {prefix!r}; save it without that"]
    for name in unknown[:3]:  # each is compared with hundreds of names
        found = near(name, missing)
        if found:
            return [f"  nearest: {name} may be {one_of(found)}"]
    return []


def _headline(source: str | Path, matched: int, expected: int) -> str:
    if not matched:
        return f"weights {source}: NOTHING matches; is it for another network?"
    return f"weights {source}: only {matched} of the network's {expected} tensors match"


def _listing(faults: Mapping[str, list[str]]) -> list[str]:
    lines = []
    for kind, names in faults.items():
        if names:
            more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
            lines.append(f"  {kind}: " + ", ".join(names[:_SHOWN]) + more)
    return lines


def _unwrap(state: Any) -> Any:
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            return state[key]
    return state


def _without_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their names before the network was wrapped."""
    names = {name: name.replace("_orig_mod.", "") for name in state}  # parts may be compiled, too
    while names and all(name.startswith("module.") for name in names.values()):
        names = {old: name.removeprefix("module.") for old, name in names.items()}
    if len(set(names.values())) < len(state):
        return dict(state)
    return {names[old]: value for old, value in state.items()}


def _is_entry(item: tuple[Any, Any]) -> bool:
    name, value = item
    return isinstance(name, str) and name.isprintable() and isinstance(value, Tensor)


def _fault(value: Tensor) -> str | None:
    """Return why a tensor cannot be weights."""
    if value.layout != torch.strided or value.is_quantized:
        return "is not a dense tensor"
    if value.is_meta:
        return "has a shape but no values"
    if value.is_complex():
        return "is complex"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "has more values than are in the file"
    # In float32, as in the network: float64 may exceed its range, and float8 has no isfinite.
    finite = not value.is_floating_point() or value.float().isfinite().all()
    return None if finite else "holds NaN or infinity"


def _why_unreadable(error: BaseException) -> str:
    """Return the reason in one line: torch's own message advises the unsafe weights_only=False."""
    refused = re.search(r"GLOBAL ([\w.]+)", str(error))
    if refused:
        return f"holds an object ({refused[1]}), not only tensors; save its state_dict() instead"
    return "is not a file of torch.save, or is damaged; download it again"
