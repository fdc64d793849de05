"""Tries a loss, a miner and a sampler once before training, called as training calls them.

Misfits then show at once, not after minutes of preparation. A class of pytorch-metric-learning is
tried while its config is checked, with made-up sizes; every component, plugins included, is tried
when a run is assembled, with the labels of its first batch.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.registry import components, contracts
from zoo.registry.calling import loss_of
from zoo.registry.components import Kind
from zoo.registry.nested import Spec
from zoo.support.randomness import unchanged_randomness

_CLASSES, _PER_CLASS = 2, 3  # as few as possible that have pairs and triplets
_MOST = 2**16  # larger sizes are not tried: a trial must not fill the memory
_OF_A_GALLERY = ("ref_emb", "ref_labels")
_Fault = tuple[tuple[str | int, ...], str]


def rehearse(
    loss: nn.Module, miner: Any, size: int, labels: Tensor, names: tuple[str, str]
) -> None:
    """Compute a loss and its gradient for made-up embeddings of images with the given labels.

    The state of the loss may change. The pairs of the miner must agree with the labels, unless its
    ``expected_failures`` has ``check_labels``. The names are those of the loss and the miner.

    Raises:
        UserError: names the component and what it did or returned.
    """
    when = f"on {len(labels)} embeddings, tried before training,"
    mined = _two_steps(loss, miner, size, labels, names, when)
    expected = getattr(miner, "expected_failures", None)
    declared = isinstance(expected, Mapping) and "check_labels" in expected
    fault = None
    if mined is not None:
        looked = None if declared else labels.cpu()
        fault = contracts.mined(mined, len(labels), looked)
    if fault:
        raise UserError(f"{names[1]} {when} {fault}")


def _two_steps(
    loss: nn.Module, miner: Any, size: int, labels: Tensor, names: tuple[str, str], when: str
) -> tuple[Tensor, ...] | None:
    """Compute loss and gradient twice, as some losses fail only then; return what was mined."""
    generator = torch.Generator().manual_seed(0)
    mined = None
    for step in ("", " for the second time"):
        x = torch.randn(len(labels), size, generator=generator).to(labels.device).requires_grad_()
        value, mined = loss_of(loss, miner, x, labels, names, when + step)
        with blaming(f"the backward pass of {names[0]} {when}{step}"):
            torch.autograd.backward(value)
    return mined


def check_call(loss: nn.Module, name: str, mined: bool) -> None:
    """Raise a UserError if a loss's ``forward`` does not take the arguments that training gives."""
    given = ["embeddings", "labels", *["indices_tuple"] * mined]
    try:
        bound = inspect.signature(loss.forward).bind(*given).arguments
        wrong = next((p for p in _OF_A_GALLERY if bound.get(p, p) == "labels"), None)
        reason = f"its second argument is {wrong}" if wrong else ""
    except TypeError as error:
        reason = str(error)
    except ValueError:  # written in C: it has no signature
        return
    if reason:
        raise UserError(
            f"{name}: {'with' if mined else 'without'} a miner, training calls "
            f"loss({', '.join(given)}), which its forward does not take ({reason}); define it as "
            "forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None)"
        )


def faults(loss: Any, miner: Any, size: int | None) -> list[_Fault]:
    """Return why a checked loss and miner cannot be trained with, and the keys concerned.

    Only components of pytorch-metric-learning, and our miners, are built; others wait for the run.
    ``size`` is that of an embedding; None if only the built network shows it.
    """
    sections = {"losses": loss, "miners": miner}
    if _largest([loss, miner]) > _MOST:
        return []
    return _try(json.dumps(sections), size)


@functools.lru_cache(maxsize=256)
def _try(text: str, size: int | None) -> list[_Fault]:
    sections = json.loads(text)
    runtime = {"num_classes": _CLASSES, "embedding_size": size or 8}
    built: dict[str, Any] = {"losses": None, "miners": None}
    with _in_silence(), torch.random.fork_rng(devices=[]), unchanged_randomness():
        for kind, key in (("losses", "loss"), ("miners", "miner")):
            if not _is_known(kind, sections):
                continue
            found = list(_unbuildable(cast("Kind", kind), sections[kind], (key,), runtime, built))
            if found:
                return found
        return list(_uncallable(sections, size, built))


def _uncallable(
    sections: Mapping[str, Any], size: int | None, built: Mapping[str, Any]
) -> Iterator[_Fault]:
    """Yield why a loss that could be built cannot be called as training calls it."""
    loss, miner = built["losses"], built["miners"]
    if loss is None or (sections["miners"] and miner is None):
        return
    try:
        check_call(loss, sections["losses"]["name"], miner is not None)
    except UserError as error:
        yield ("loss",), str(error).split(": ", 1)[1]
        return
    if size is None:
        return
    labels = torch.arange(_CLASSES).repeat_interleave(_PER_CLASS)
    names = (sections["losses"]["name"], (sections["miners"] or {}).get("name", ""))
    call = "loss(embeddings, labels, indices_tuple)" if miner else "loss(embeddings, labels)"
    try:
        _two_steps(loss, miner, size, labels, names, f"called as {call}")
    except UserError as error:
        yield ("loss",), f"cannot be trained with: {error}"


def _unbuildable(
    kind: Kind,
    spec: Mapping[str, Any],
    keys: tuple[str | int, ...],
    runtime: Mapping[str, Any],
    built: dict[str, Any] | None = None,
) -> Iterator[_Fault]:
    """Yield which components cannot be built, nested ones first."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    inner: list[_Fault] = []

    def look(below: tuple[str | int, ...], nested: Spec) -> Any:
        below_spec = {"name": nested.name, **nested.arguments}
        of_kind = cast("Kind", nested.kind)
        inner.extend(_unbuildable(of_kind, below_spec, (*keys, *below), runtime))

    components.rewrite_nested(kind, spec["name"], arguments, look)
    yield from inner
    if inner:
        return
    try:
        component = components.assemble(kind, spec["name"], arguments, runtime)
    except UserError as error:
        yield keys, str(error)
    else:
        if built is not None:
            built[kind] = component


def _is_known(kind: str, sections: Mapping[str, Any]) -> bool:
    """Return whether a component is to be tried: one of PML, or one of our miners."""
    spec = sections[kind]
    if not isinstance(spec, Mapping):
        return False
    if str(spec["name"]).startswith("pml."):
        return True
    return kind == "miners" and components.component("miners", spec["name"]).is_own


def _largest(value: Any) -> float:
    """Return the largest number in plain data, or 0 if there is none."""
    if isinstance(value, Mapping | list | tuple):
        items: Sequence[Any] = list(value.values() if isinstance(value, Mapping) else value)
        return max(map(_largest, items), default=0)
    return abs(value) if isinstance(value, int | float) else 0


@contextmanager
def _in_silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
