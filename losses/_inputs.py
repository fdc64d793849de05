"""The arguments of a loss: everything that it cannot use is refused with a message."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import UserError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_FORMS = {
    3: "three of equal length, (anchors, positives, negatives)",
    4: "four, (anchors, positives, anchors, negatives), each two of equal length",
}


def check(
    embeddings: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
) -> None:
    """Refuse arguments that a loss cannot use; reads only shapes, so that no GPU has to wait.

    On a CPU, where it costs nothing, indices without an image are also refused. Negative ones would
    count from the end.

    Raises:
        UserError: says which argument is wrong, and how.
    """
    _check_items("embeddings", embeddings, "labels", labels, needed=indices_tuple is None)
    if (ref_emb is None) != (ref_labels is None) and labels is not None:
        lacking = "ref_labels" if ref_labels is None else "ref_emb"
        raise UserError(f"{lacking} is missing: a gallery has embeddings and labels")
    if ref_emb is not None:
        _check_items("ref_emb", ref_emb, "ref_labels", ref_labels, needed=indices_tuple is None)
        if ref_emb.shape[1] != embeddings.shape[1] or ref_emb.device != embeddings.device:
            raise UserError(
                f"ref_emb of shape {tuple(ref_emb.shape)} on {ref_emb.device} does not match "
                f"embeddings of shape {tuple(embeddings.shape)} on {embeddings.device}"
            )
        _check_kinds(labels, ref_labels)
    if indices_tuple is not None:
        _check_indices(indices_tuple)
        _check_range(indices_tuple, embeddings, embeddings if ref_emb is None else ref_emb)


def _check_kinds(labels: Tensor | None, ref_labels: Tensor | None) -> None:
    """Refuse labels that have no common type for a comparison: int64 and uint64."""
    kinds = [x.dtype for x in (labels, ref_labels) if x is not None]
    if len({kind == torch.uint64 for kind in kinds}) > 1:
        raise UserError(
            f"labels are {_kind(labels)} and ref_labels {_kind(ref_labels)}, which PyTorch cannot "
            "compare; convert both to one type, for example with .long()"
        )


def as_int64(labels: Tensor | None) -> Tensor | None:
    """Return integers of a type that PyTorch fully supports, which uint16 is not."""
    return None if labels is None else labels.long()


def _check_items(
    name: str, x: Tensor, label_name: str, labels: Tensor | None, needed: bool
) -> None:
    if not _is_of(x, _FLOATS):
        raise UserError(f"{name} must be a dense tensor of floats, not {_kind(x)}")
    if x.ndim != 2 or x.shape[1] == 0:
        raise UserError(f"{name} must be of shape (items, dimensions), not {tuple(x.shape)}")
    if labels is None:
        if needed:
            raise UserError(f"{label_name} are missing; only with mined pairs are they optional")
        return
    if not _is_of(labels, _INTEGERS):
        raise UserError(f"{label_name} must be a dense tensor of integers, not {_kind(labels)}")
    if labels.shape != x.shape[:1]:
        raise UserError(
            f"{label_name} must be one integer for each of the {len(x)} rows of {name}; they are "
            f"{_kind(labels)} of shape {tuple(labels.shape)}"
        )


def _check_indices(indices: tuple[Tensor, ...]) -> None:
    if not isinstance(indices, tuple | list):
        raise UserError(f"indices_tuple must be a tuple of tensors, not {_kind(indices)}")
    form = _FORMS.get(len(indices))
    if form is None:
        raise UserError(
            f"indices_tuple has {len(indices)} tensors; it takes {' or '.join(_FORMS.values())}"
        )
    for part in indices:
        if not _is_of(part, _INTEGERS):
            raise UserError(f"indices_tuple must hold tensors of integers, not {_kind(part)}")
        if part.ndim != 1:
            raise UserError(
                f"indices_tuple must hold tensors of one dimension, not of {tuple(part.shape)}"
            )
    lengths = [len(part) for part in indices]
    paired = lengths[0] == lengths[1] and lengths[-2] == lengths[-1]
    if not paired or (len(indices) == 3 and len(set(lengths)) > 1):
        raise UserError(f"indices_tuple has lengths {lengths}; it takes {form}")


def _check_range(indices: tuple[Tensor, ...], embeddings: Tensor, gallery: Tensor) -> None:
    for place, part in enumerate(indices):
        if part.device.type != "cpu" or not len(part):
            continue
        of_anchors = place == 0 or (place == 2 and len(indices) == 4)
        name, x = ("embeddings", embeddings) if of_anchors else ("the gallery", gallery)
        low, high = map(int, part.long().aminmax())
        if low < 0:
            raise UserError("indices_tuple has negative indices; they count from 0")
        if high >= len(x):
            raise UserError(
                f"indices_tuple[{place}] has the index {high}, but {name} has {len(x)} rows, "
                "counted from 0"
            )


def _is_of(x: object, dtypes: tuple[torch.dtype, ...]) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and x.dtype in dtypes


def _kind(x: object) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    dense = "" if x.layout == torch.strided else f", {str(x.layout).removeprefix('torch.')}"
    return str(x.dtype).removeprefix("torch.") + dense
