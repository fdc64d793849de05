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
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.registry import components, contracts, hooks
from zoo.registry.calling import loss_of, takes_image_ids
from zoo.registry.components import Kind
from zoo.registry.nested import Spec
from zoo.support.randomness import unchanged_randomness

_CLASSES, _PER_CLASS = 2, 3  # as few as possible that have pairs and triplets
_MOST = 2**16  # larger sizes are not tried: a trial must not fill the memory
_OF_A_GALLERY = ("ref_emb", "ref_labels")
_Fault = tuple[tuple[str | int, ...], str]


class Rehearsal(NamedTuple):
    """Made-up embeddings of a batch of training images, whose labels are real.

    Attributes:
        size: of an embedding.
        labels: (N,) of the batch.
        ids: (N,) the place of its images in the training data.
        all_labels: (n,) of the training data.
        names: of the loss and the miner, for messages.
    """

    size: int
    labels: Tensor
    ids: Tensor
    all_labels: Tensor
    names: tuple[str, str]

    @classmethod
    def alone(cls, size: int, labels: Tensor, names: tuple[str, str]) -> Rehearsal:
        """Return a trial of a batch that is all of the training data."""
        return cls(size, labels, torch.arange(len(labels), device=labels.device), labels, names)

    def embeddings(self, of: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return an embedding for each of some labels."""
        generator = generator or torch.Generator().manual_seed(0)
        return torch.randn(len(of), self.size, generator=generator).to(of.device)

    def begin_epoch(self, *components: object) -> None:
        """Let components look at the training data."""
        for hooked in hooks.of_epochs(*components):
            with blaming(f"begin_epoch of {self.names[0]}, tried before training,"):
                embed = partial(hooks.rows_of, self.embeddings(self.all_labels))
                hooked.begin_epoch(0, self.all_labels.clone(), embed)

    def value(
        self, loss: nn.Module, miner: Any, x: Tensor, when: str
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Return the loss of embeddings of the batch, and what was mined."""
        ids = self.ids if takes_image_ids(loss) else None
        return loss_of(loss, miner, x.requires_grad_(), self.labels, self.names, when, ids)


def rehearse(loss: nn.Module, miner: Any, trial: Rehearsal) -> None:
    """Compute a loss and its gradient for made-up embeddings of some training images.

    The state of the loss may change. The pairs of the miner must agree with the labels, unless its
    ``expected_failures`` has ``check_labels``.

    Raises:
        UserError: names the component and what it did or returned.
    """
    when = f"on {len(trial.labels)} embeddings, tried before training,"
    mined = _two_steps(loss, miner, trial, when)
    expected = getattr(miner, "expected_failures", None)
    declared = isinstance(expected, Mapping) and "check_labels" in expected
    fault = None
    if mined is not None:
        looked = None if declared else trial.labels.cpu()
        fault = contracts.mined(mined, len(trial.labels), looked)
    if fault:
        raise UserError(f"{trial.names[1]} {when} {fault}")


def output(kind: Kind, trial: Rehearsal, component: nn.Module) -> Tensor:
    """Return what a loss or a miner gives for made-up embeddings: its value, or its indices."""
    component = component.to(trial.labels.device)
    x = trial.embeddings(trial.labels)
    trial.begin_epoch(component)
    if kind == "miners":
        return torch.cat([*component(x, trial.labels)])
    return trial.value(component, None, x, "tried before training,")[0]


def _two_steps(
    loss: nn.Module, miner: Any, trial: Rehearsal, when: str
) -> tuple[Tensor, ...] | None:
    """Compute loss and gradient twice, as some losses fail only then; return what was mined."""
    generator = torch.Generator().manual_seed(0)
    mined = None
    trial.begin_epoch(loss, miner)
    for step in ("", " for the second time"):
        x = trial.embeddings(trial.labels, generator)
        value, mined = trial.value(loss, miner, x, when + step)
        with blaming(f"the backward pass of {trial.names[0]} {when}{step}"):
            torch.autograd.backward(value)
    return mined


def check_call(loss: nn.Module, name: str, mined: bool) -> None:
    """Raise a UserError if a loss's ``forward`` does not take the arguments that training gives."""
    given = ["embeddings", "labels", *["indices_tuple"] * mined]
    more = {"image_ids": "image_ids"} if takes_image_ids(loss) else {}
    try:
        bound = inspect.signature(loss.forward).bind(*given, **more).arguments
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
    runtime = {
        "num_classes": _CLASSES,
        "embedding_size": size or 8,
        "num_images": _CLASSES * _PER_CLASS,
        "level_sizes": [size or 8],
    }
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
        _two_steps(loss, miner, Rehearsal.alone(size, labels, names), f"called as {call}")
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
