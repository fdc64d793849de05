"""What a loss may be called with; everything else is refused in words."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import UserError

_NOT_INTEGERS = (torch.bool,)
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
    """Refuse what a loss cannot use; it looks at shapes only, for which no GPU has to wait.

    On a CPU, where that costs nothing, negative indices are refused too: they would count from the
    end.

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
                f"ref_emb of shape {tuple(ref_emb.shape)} on {ref_emb.device} does not go with "
                f"embeddings of shape {tuple(embeddings.shape)} on {embeddings.device}"
            )
    if indices_tuple is not None:
        _check_indices(indices_tuple)


def _check_items(
    name: str, x: Tensor, label_name: str, labels: Tensor | None, needed: bool
) -> None:
    if not isinstance(x, Tensor) or x.layout != torch.strided or not x.is_floating_point():
        raise UserError(f"{name} must be a dense tensor of floats, not {_kind(x)}")
    if x.ndim != 2 or x.shape[1] == 0:
        raise UserError(f"{name} must be of shape (items, dimensions), not {tuple(x.shape)}")
    if labels is None:
        if needed:
            raise UserError(f"{label_name} are missing; only mined pairs can do without")
        return
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        raise UserError(f"{label_name} must be a tensor of integers, not {_kind(labels)}")
    if labels.dtype in _NOT_INTEGERS or labels.shape != x.shape[:1]:
        raise UserError(
            f"{label_name} must be one integer for each of the {len(x)} rows of {name}; they are "
            f"{_kind(labels)} of shape {tuple(labels.shape)}"
        )


def _check_indices(indices: tuple[Tensor, ...]) -> None:
    form = _FORMS.get(len(indices))
    if form is None:
        raise UserError(
            f"indices_tuple has {len(indices)} tensors; it takes {' or '.join(_FORMS.values())}"
        )
    lengths = [len(part) for part in indices]
    paired = lengths[0] == lengths[1] and lengths[-2] == lengths[-1]
    if not paired or (len(indices) == 3 and len(set(lengths)) > 1):
        raise UserError(f"indices_tuple has lengths {lengths}; it takes {form}")
    for part in indices:
        if part.device.type == "cpu" and len(part) and int(part.min()) < 0:
            raise UserError("indices_tuple has negative indices; they count from 0")


def _kind(x: object) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    dense = "" if x.layout == torch.strided else f", {str(x.layout).removeprefix('torch.')}"
    return str(x.dtype).removeprefix("torch.") + dense
