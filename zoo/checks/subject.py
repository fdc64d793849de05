"""A loss under check: building it, reading what it declares, and calling it."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
import textwrap
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo import errors
from zoo.base import RUNTIME
from zoo.checks.batches import CLASSES, DIMENSIONS, IMAGES, TrialBatch, generator
from zoo.errors import FAILURES, UserError, blame, did_you_mean, frame_of, words_of
from zoo.registry import Kind, components, contracts, hooks
from zoo.registry.arguments import check as check_arguments
from zoo.registry.arguments import parameters_of
from zoo.registry.calling import takes_image_ids
from zoo.support.checked import checked

_BOOL = (bool, "True or False")
_ATTRIBUTES: dict[str, tuple[type, str]] = {
    "kind": (str, "text, such as 'pair'"),
    "gallery": _BOOL,
    "mined": _BOOL,
    "normalises": _BOOL,
    "random": _BOOL,
    "expected_failures": (Mapping, "a dict of names of checks and reasons, {check: reason}"),
    "check_arguments": (Mapping, "a dict of arguments, {name: value}"),
}
SIZES = {
    "num_classes": CLASSES,
    "embedding_size": DIMENSIONS,
    "num_images": IMAGES,
    "level_sizes": [2, DIMENSIONS - 2],
}


class CheckFailedError(AssertionError):
    """A loss does not have a property; the message says what was seen, and on which batch.

    Attributes:
        kind: what went wrong, in a word; a smaller batch shows the same fault only if its kind is
            the same.
        fault: the message without time and batch; checks that find the same fault share it.
    """

    def __init__(self, message: str, kind: str = "value", fault: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.fault = message if fault is None else fault


class NotApplicableError(unittest.SkipTest):
    """A check has no meaning for a loss; pytest counts it as skipped."""


class LossTraits(NamedTuple):
    """What a loss declares; None where it declares nothing.

    Attributes:
        kind: "pair", "triplet", "list", "proxy", "classifier" or "clustering".
        gallery: whether ``ref_emb`` has a meaning for it.
        mined: whether ``indices_tuple`` has a meaning for it.
        normalises: whether the lengths of the embeddings make no difference.
        random: whether two calls may give two values.
        own_classes: whether it has weights for each class: labels are then indices.
        expected_failures: names of checks that it cannot pass by its definition, with reasons.
    """

    kind: str | None
    gallery: bool | None
    mined: bool | None
    normalises: bool | None
    random: bool
    own_classes: bool
    expected_failures: Mapping[str, str]


class LossCall(NamedTuple):
    """The result of a call in float64: the value, its gradient (N, d), those of the parameters."""

    value: Tensor
    gradient: Tensor
    of_parameters: dict[str, Tensor]


class Subject:
    """A loss under check; every :meth:`build` gives a new one, with the same weights.

    Args:
        loss: a name of the registry, ``pml.<ClassName>``, ``"module:Class"``, a class, or a
            function that returns a module.
        arguments: for the constructor; ``num_classes`` and ``embedding_size`` are supplied if it
            has them.

    Raises:
        UserError: if there is no such loss, or it cannot be built from the arguments.
    """

    kind: Kind = "losses"

    @checked
    def __init__(
        self, loss: str | Callable[..., nn.Module], arguments: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(loss, nn.Module):
            raise UserError("checks build a loss many times: give its class, not an object")
        self.registered = isinstance(loss, str) and ":" not in loss
        self.target: Any = loss if not isinstance(loss, str) else find(loss)
        self.short = loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss))
        given = ", ".join(f"{key}={value}" for key, value in (arguments or {}).items())
        own = declared_value(self.target, "check_arguments", self.short)
        self.arguments = {**own, **(arguments or {})}
        self.name = f"{self.short}({given})" if given else self.short
        self._first: dict[int, nn.Module] = {}
        self.build()  # report wrong arguments now
        _ = self.traits  # and wrong declarations

    def __repr__(self) -> str:
        return f"<Subject {self.name}>"

    def build(self, seed: int = 0) -> nn.Module:
        """Return a new loss in float32; the seed decides its initial weights."""
        if seed not in self._first:
            self._first[seed] = self._construct(seed)
        try:
            return copy.deepcopy(self._first[seed])  # ten times as fast as building
        except FAILURES:  # not everything can be copied
            return self._construct(seed)

    def _construct(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            loss = self._assemble()
        if fault := contracts.module(loss):
            raise UserError(f"{self.name} {fault}")
        made: nn.Module = loss
        begin_epoch(made, self.name)
        return made

    def _assemble(self) -> Any:
        if self.registered:
            return components.assemble("losses", self.short, self.arguments, self._runtime())
        found = check_arguments(self.short, self.target, self.arguments, RUNTIME["losses"])
        if found:
            raise UserError("\n".join(": ".join(filter(None, p)) for p in found))
        return construct(self.short, self.target, self.arguments, self._runtime())

    def _runtime(self) -> dict[str, Any]:
        """Return what a run would supply: sizes, and the space that the loss asks for."""
        wanted = getattr(self.target, "spaces", ())
        return {**SIZES, "space": components.build("spaces", wanted[0]) if wanted else None}

    @cached_property
    def traits(self) -> LossTraits:
        """What the loss declares, by its attributes and its constructor."""
        loss = self.build()
        own = {name: declared_value(loss, name, self.short) for name in _ATTRIBUTES}
        kind = own["kind"]
        declared = {p.name for p in parameters_of(self.target)}
        return LossTraits(
            kind=kind,
            gallery=own["gallery"],
            mined=own["mined"],
            normalises=own["normalises"],
            random=bool(own["random"]),
            own_classes=kind in ("proxy", "classifier") or "num_classes" in declared,
            expected_failures=own["expected_failures"],
        )

    def takes(self, argument: str) -> bool:
        """Return whether ``forward`` takes an argument."""
        parameters = inspect.signature(self.build().forward).parameters.values()
        return any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters)

    def reference_gradient(self, batch: TrialBatch) -> Tensor | None:
        """Return the gradient that the loss declares instead of the derivative of its value."""
        reference = getattr(self.build(), "reference_gradient", None)
        if reference is None:
            return None
        with blaming("its reference_gradient"):
            gradient: Tensor | None = reference(batch.x, batch.y)
        return gradient

    def value(self, batch: TrialBatch, dtype: torch.dtype = torch.float64) -> float:
        """Return only the value."""
        value = call(self.build().to(dtype), batch.x.to(dtype), batch.y, ids=batch.ids)
        return float(value.detach())

    def evaluate(
        self,
        batch: TrialBatch,
        dtype: torch.dtype = torch.float64,
        loss: nn.Module | None = None,
        **more: Any,
    ) -> LossCall:
        """Return value and gradients of a new loss, or of the given one.

        Raises:
            CheckFailedError: if the loss raises anything, or its result cannot be minimised.
        """
        if loss is None:
            loss = self.build().to(torch.float32 if dtype.itemsize < 4 else dtype)
        x = batch.x.to(dtype, copy=True).requires_grad_()
        loss.zero_grad(set_to_none=True)
        value = call(loss, x, batch.y, ids=batch.ids, **more)
        with blaming("its backward pass"):
            torch.autograd.backward(value)
        gradients = {
            name: p.grad.double() for name, p in loss.named_parameters() if p.grad is not None
        }
        gradient = torch.zeros_like(x) if x.grad is None else x.grad
        return LossCall(value.detach().double(), gradient.double(), gradients)


def begin_epoch(loss: nn.Module, name: str) -> None:
    """Let a loss look at made-up training data, as a run does before an epoch."""
    labels = torch.arange(IMAGES) % CLASSES
    embeddings = torch.randn(IMAGES, DIMENSIONS, generator=generator(13))
    for hooked in hooks.of_epochs(loss):
        with errors.blaming(f"begin_epoch of {name}"):
            hooked.begin_epoch(0, labels, partial(hooks.rows_of, embeddings))


def call(
    loss: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | None = None, **more: Any
) -> Tensor:
    """Return the value of a loss; the seed decides its random numbers.

    If it asks for the ids of the images, it is given them; they count from 0 by default.
    """
    if takes_image_ids(loss):
        more["image_ids"] = torch.arange(len(y), device=y.device) if ids is None else ids
    with torch.random.fork_rng(devices=[]), blaming("it"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed walks the stack
        value = loss(x, y, **more)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise CheckFailedError(f"it returned {shape}, not one number", "shape")
    if x.requires_grad and not value.requires_grad:
        raise CheckFailedError("it returned a number that does not depend on x: no graph", "graph")
    return value.reshape(())


def construct(
    name: str, target: Any, arguments: Mapping[str, Any], runtime: Mapping[str, Any]
) -> Any:
    """Build what is not in the registry, with those of the runtime's arguments that it declares.

    Raises:
        UserError: the constructor raises anything.
    """
    declared = {p.name for p in parameters_of(target)}
    supplied = {k: v for k, v in runtime.items() if k in declared}
    with errors.blaming(f"building {name}"):
        return target(**{**supplied, **arguments})


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn an exception of a loss into a failure of the check that says where it was raised."""
    try:
        yield
    except FAILURES as error:
        frame = frame_of(error)
        where = f" ({Path(frame.filename).name}:{frame.lineno})" if frame else ""
        reason = textwrap.shorten(words_of(error), 160, placeholder=" ...")
        raise CheckFailedError(
            f"{what} raised {type(error).__name__}: {reason}{where}",
            type(error).__name__,
        ) from error


def declared_value(owner: Any, attribute: str, name: str) -> Any:
    """Return a declared attribute of a component; None or {} if it has none.

    Raises:
        UserError: if it cannot be read, or is of the wrong type.
    """
    wanted, in_words = _ATTRIBUTES[attribute]
    nothing: Any = {} if wanted is Mapping else None
    try:
        value = getattr(owner, attribute, nothing)
    except FAILURES as error:
        raise blame(f"reading {attribute} of {name}", error) from error
    fits = value is nothing or isinstance(value, wanted)
    if isinstance(value, Mapping):
        reasons = value.values() if attribute == "expected_failures" else ()
        fits = fits and all(isinstance(text, str) for text in [*value, *reasons])
    if not fits:
        raise UserError(f"{attribute} of {name} must be {in_words}, not {value!r:.100}")
    return value


def find(name: str, kind: Kind = "losses") -> Any:
    """Return the class behind a name of the registry or behind ``module:Class``."""
    file, colon, attributes = name.partition(":")
    module = file.removesuffix(".py").replace("/", ".")
    if not colon:
        script = f"{module.replace('.', '/')}.py"
        # Path.is_file raises if a name is too long.
        if not components.kinds_of(name) and os.path.isfile(script):  # noqa: PTH113
            raise UserError(f"{name!r} is a file; name the class in it, {module}:<Class>")
        return components.load(kind, name)
    target = _import(module)
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            hint = did_you_mean(attribute, vars(target))
            raise UserError(f"cannot import {name!r}: {module} has no {attribute!r}{hint}")
        target = getattr(target, attribute)
    if not callable(target):
        raise UserError(f"{name!r} is not a class")
    return target


def _import(module: str) -> Any:
    """Import a module from the working directory or sys.path; report the line where it fails."""
    if "" not in sys.path:  # the folder of the `zoo` script is there instead
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    except FAILURES as error:
        says_where = isinstance(error, ImportError | SyntaxError)
        frame = None if says_where else frame_of(error)
        where = f" ({frame.filename}:{frame.lineno})" if frame else ""
        reason = f"{type(error).__name__}: {words_of(error)}{where}"
        raise UserError(f"cannot import {module!r}: {reason}") from error
