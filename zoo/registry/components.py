"""From names to components. Reads tables and entry points; imports a component only for use.

A component is a class behind a ``"module:Class"`` target. It comes from one of four places:

* the BUILTIN table of a component folder, each entry wrapped as an entry point like a plugin's;
* an entry point of another distribution, in the group ``zoo.<kind>``;
* :func:`register`, in a notebook or a script;
* ``pml.<ClassName>``, which reaches every class of pytorch-metric-learning.

A name that ends in ``.*`` is a family: ``torchvision.resnet50`` builds the target of
``torchvision.*`` with ``variant="resnet50"``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, cast, get_args

from zoo.base import RUNTIME
from zoo.errors import (
    FAILURES,
    UserError,
    blaming,
    did_you_mean,
    one_of,
    suggest,
    words_of,
)
from zoo.registry import nested as registry_nested
from zoo.registry import pml, source
from zoo.registry.arguments import Misfit, Parameter, check, parameters_of
from zoo.support.checked import shown
from zoo.support.near import near

Kind = Literal["losses", "miners", "samplers", "backbones", "datasets", "spaces", "trackers"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_FOLDERS = ("losses", "miners", "models", "datasets", "trackers")
_OWN = "metric-zoo"
_LEAST_NUMBER, _MOST_NUMBER = 1e-12, 1e9  # magnitude of arguments of losses and miners
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?")
_OF_FILES = ("backbones", "datasets")  # whose errors begin with a path
_PML = pml.PREFIX
_PML_NAME = "pytorch-metric-learning"
# Sizes that the runtime supplies to losses, and a user may give.
SIZES = frozenset({"num_classes", "embedding_size"})
_T = TypeVar("_T")


@dataclass(frozen=True)
class Component:
    """What is known of a component.

    Attributes:
        kind: losses, miners, samplers, backbones, datasets, spaces or trackers.
        name: what configs call it.
        target: ``"module:Class"``.
        distribution: where it comes from, with its version if known.
        summary: first line of the docstring.
        facts: class attributes that are plain text: ``paper``, and for losses ``kind``, ``cost``
            and ``sampler``.
        arguments: names that its constructor takes, as far as its source shows.
        broken: why it cannot be used; None if no reason is known.
        parameters: constructor arguments; filled in by :func:`describe` only.
    """

    kind: Kind
    name: str
    target: str
    distribution: str
    summary: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    broken: str | None = None
    parameters: tuple[Parameter, ...] = ()

    @property
    def paper(self) -> str:
        """Authors, year and title; empty if the class has none."""
        return self.facts.get("paper", "")

    @property
    def is_own(self) -> bool:
        """Whether it is a component of this repository."""
        return self.distribution == _OWN


@dataclass(frozen=True)
class _Claim:
    """One claim to a name: an entry point, and the class itself if it was registered at runtime."""

    entry: EntryPoint
    distribution: str
    live: type | None = None

    def load(self) -> Any:
        return self.live if self.live is not None else self.entry.load()


_registered: dict[tuple[str, str], _Claim] = {}

REGISTERED_IN = "registered in "
"""Precedes the module, where others have the name of the distribution that has a component."""


def names(kind: Kind) -> list[str]:
    """Return the sorted names of a kind, families as ``prefix.*``; imports nothing heavy.

    The classes of pytorch-metric-learning, ``pml.<ClassName>``, are in :func:`pml_names` instead.
    """
    return sorted(_claims(kind))


def pml_names(kind: Kind) -> list[str]:
    """Return ``pml.<ClassName>`` for every class of that kind in pytorch-metric-learning."""
    _check_kind(kind)
    return sorted(_PML + name for name in pml.targets(kind))


def kinds_of(name: str) -> list[Kind]:
    """Return the kinds that have a component of that name."""
    return [kind for kind in KINDS if name in _claims(kind) or name in pml_names(kind)]


def is_there(kind: Kind, name: str) -> bool:
    """Return whether there is a component of that name; imports nothing."""
    return bool(_claims_of(kind, name))


def plugin_of(kind: Kind, name: str) -> str | None:
    """Return the distribution of a plugin's component; None for our own and those of PML."""
    owners = {claim.distribution for claim in _claims_of(kind, name)}
    return None if owners <= {_OWN, _PML_NAME} else ", ".join(sorted(owners))


def component(kind: Kind, name: str) -> Component:
    """Return what is known of a component without importing it.

    Raises:
        UserError: if there is no such name.
    """
    found = (isinstance(name, str) and _claims(kind).get(name)) or [_claim(kind, name)]
    if len(found) > 1:
        return Component(
            kind,
            name,
            target=", ".join(c.entry.value for c in found),
            distribution=", ".join(c.distribution for c in found),
            broken=_claimed_twice(name, found),
        )
    (claim,) = found
    if claim.live is not None:
        facts = {k: v for k, v in vars(claim.live).items() if isinstance(v, str) and k[0] != "_"}
        text = source.Text(_first_line(claim.live), facts)
    else:
        text = source.read(claim.entry.value)
    return Component(kind, name, claim.entry.value, claim.distribution, *text)


def describe(kind: Kind, name: str) -> Component:
    """Import a component and return all that is known of it, including its parameters.

    Raises:
        UserError: if there is no such name; a broken component is described as such.
    """
    found = component(kind, name)
    if found.broken:
        return found
    claim = _claim(kind, name)
    of_family = claim.entry.name.endswith(".*")
    try:
        target = _load(claim, name)
        if of_family:
            _check_family(kind, claim, target, name)
    except _BrokenError as error:
        return replace(found, broken=str(error))
    bound = {"variant"} if of_family else set()
    known = tuple(p for p in parameters_of(target) if p.name not in bound)
    return replace(found, parameters=known, summary=_first_line(target) or found.summary)


def build(kind: Kind, name: str, /, **arguments: Any) -> Any:
    """Build a component: ``zoo.build("losses", "ice", scale=64.0)``.

    Raises:
        UserError: if the name is unknown, claimed twice or broken, or if arguments are unknown,
            missing or of the wrong type; one message reports all, before anything is built.
    """
    return assemble(kind, name, arguments, {})


def assemble(
    kind: Kind, name: str, arguments: Mapping[str, Any], runtime: Mapping[str, Any]
) -> Any:
    """Build a component with the user's arguments and those that it takes from the runtime."""
    found = problems(kind, name, arguments, runtime) or _wrong_sizes(arguments, runtime)
    if found:
        raise UserError("\n".join(": ".join(filter(None, p)) for p in found))
    target, bound = _resolve(kind, name)
    declared = {p.name for p in parameters_of(target)}
    supplied = {k: v for k, v in runtime.items() if k in declared and k not in arguments}

    def build_nested(_: Any, spec: registry_nested.Spec) -> Any:
        return assemble(cast("Kind", spec.kind), spec.name, spec.arguments, runtime)

    whole = registry_nested.rewrite(target, kind, arguments, build_nested)
    with blaming(f"building {name}"):
        try:
            return target(**supplied, **whole, **bound)
        except (ValueError, AssertionError) as error:  # its own check
            if not words_of(error):
                raise
            named = kind in _OF_FILES or str(error).startswith((name, target.__name__))
            raise UserError(str(error) if named else f"{name}: {error}") from error


def problems(
    kind: Kind, name: str, arguments: Mapping[str, Any], runtime: Collection[str] | None = None
) -> list[Misfit]:
    """Return what is wrong with a name and its arguments, without building anything.

    ``runtime`` are the names that the runtime will supply; by default all those of this kind.
    """
    try:
        target, bound = _resolve(kind, name)
    except UserError as error:
        return [Misfit(None, str(error))]
    given = supplied(kind) if runtime is None else frozenset(runtime)
    nested = registry_nested.places(target, kind, arguments)
    own = {k: v for k, v in arguments.items() if k not in nested}
    hidden = given - SIZES if kind == "losses" else given  # a user may give sizes
    found = check(name, target, own, given | set(nested), set(bound), hidden)
    declared = {p.name for p in parameters_of(target)}
    if kind in ("losses", "miners", *pml.PARTS):
        found += _out_of_range({k: v for k, v in own.items() if k in declared})
    return found + _nested_problems(target, kind, arguments, runtime)


def rewrite_nested(
    kind: Kind,
    name: str,
    arguments: Mapping[str, Any],
    make: Callable[[tuple[str | int, ...], registry_nested.Spec], Any],
) -> dict[str, Any]:
    """Return a component's arguments, replacing each that is a component by ``make``'s result."""
    return registry_nested.rewrite(_resolve(kind, name)[0], kind, arguments, make)


def parameters(kind: Kind, name: str) -> tuple[Parameter, ...]:
    """Return the arguments that a component's name leaves open; nested kinds are allowed."""
    target, bound = _resolve(kind, name)
    return tuple(p for p in parameters_of(target) if p.name not in bound)


def full_name(kind: str, name: str) -> str:
    """Return the name of a nested component in full: ``LpDistance`` is ``pml.LpDistance``."""
    return _PML + name.removeprefix(_PML) if kind in pml.PARTS else name


def load(kind: Kind, name: str) -> Any:
    """Import a component, or the class behind a family, and return it without building it.

    Raises:
        UserError: if there is no such name or it is broken.
    """
    return _load(_claim(kind, name), name)


def documentation(target: Any) -> str:
    """Return the docstring of the class itself, not an inherited one; empty if it has none."""
    return inspect.cleandoc(target.__doc__ or "")


def register(kind: Kind, name: str) -> Callable[[type[_T]], type[_T]]:
    """Register a class of a notebook or script: ``@zoo.register("losses", "mine")``.

    Registering the same class again (a notebook cell run twice) replaces it.

    Args:
        kind: losses, miners, samplers, backbones, datasets, spaces or trackers.
        name: the name in configs and commands: letters, digits and ``_`` or ``-``, with dots
            between parts.

    Raises:
        UserError: if the name is taken or not valid, or the decorated object is not a class.
    """
    _check_kind(kind)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"{shown(name)} is not a name for one of {kind}: use letters, digits, _ and -, with "
            'dots between parts, such as "mine"'
        )

    def decorate(cls: type[_T]) -> type[_T]:
        if not isinstance(cls, type):
            raise UserError(f"{kind}: {name} must be a class, not {shown(cls)}")
        value = f"{cls.__module__}:{cls.__qualname__}"
        taken = [c for c in _claims(kind).get(name, []) if c.entry.value != value]
        if taken or name.startswith(_PML):
            owner = taken[0].distribution if taken else _PML_NAME
            raise UserError(f"{kind}: the name {name!r} belongs to {owner}; choose another")
        entry = EntryPoint(name, value, f"zoo.{kind}")
        _registered[kind, name] = _Claim(entry, f"{REGISTERED_IN}{cls.__module__}", cls)
        return cls

    return decorate


def _claims(kind: Kind) -> dict[str, list[_Claim]]:
    _check_kind(kind)
    claims: dict[str, list[_Claim]] = {}
    for name, claim in _installed(kind):
        claims.setdefault(name, []).append(claim)
    for (of_kind, name), claim in _registered.items():
        if of_kind == kind:
            claims.setdefault(name, []).append(claim)
    return claims


@functools.cache
def _installed(kind: Kind) -> tuple[tuple[str, _Claim], ...]:
    """Return the claims of our tables and of installed distributions, read once per process."""
    group = f"zoo.{kind}"
    found = [
        (name, _Claim(EntryPoint(name, value, group), _OWN))
        for folder in _FOLDERS
        for name, value in importlib.import_module(f"zoo.{folder}").BUILTIN.get(kind, {}).items()
    ]
    for entry in installed_entry_points().select(group=group):
        dist = getattr(entry, "dist", None)
        owner = f"{dist.metadata['Name']} {dist.version}" if dist else "an unnamed distribution"
        found.append((entry.name, _Claim(entry, owner)))
    return tuple(found)


@functools.cache
def installed_entry_points() -> Any:  # Python 3.10's and 3.12's type of it differ
    """Return the entry points of all groups; finding them reads a file of every distribution."""
    return entry_points()


def _claim(kind: Kind, name: str) -> _Claim:
    """Return the one claim to a name, for a member that of its family, or raise a UserError."""
    if isinstance(kind, str) and kind in pml.PARTS:
        _check_name(kind, name)
        return _claim_of_part(kind, name)
    found = _claims_of(kind, name)
    if not found:
        raise UserError(_unknown(kind, name))
    if len(found) > 1:
        raise UserError(_claimed_twice(name, found))
    return found[0]


def _claims_of(kind: Kind, name: str) -> list[_Claim]:
    """Return all claims to a name; if it has none of its own, those to its family."""
    claims = _claims(kind)
    _check_name(kind, name)
    found = claims.get(name)
    if not found and "." in name and not name.endswith("*"):
        found = claims.get(name.split(".", 1)[0] + ".*")
    if not found and name.startswith(_PML):
        target = pml.targets(kind).get(name.removeprefix(_PML))
        if target:
            entry = EntryPoint(name, target, f"zoo.{kind}")
            found = [_Claim(entry, _PML_NAME)]
    return found or []


def _claim_of_part(kind: str, name: str) -> _Claim:
    """Return the claim of a distance, reducer or regularizer, which only PML has."""
    target = pml.part(kind, name)
    if target is None:
        known = list(pml.targets(kind))
        hint = did_you_mean(name.removeprefix(_PML), known) or f"; there are {', '.join(known)}"
        raise UserError(f"there is no {registry_nested.one_of_kind(kind)} named {name!r}{hint}")
    return _Claim(EntryPoint(name, target, f"zoo.{kind}"), _PML_NAME)


def _resolve(kind: Kind, name: str) -> tuple[Any, dict[str, Any]]:
    """Import a component; return its class and the arguments that its name implies."""
    claim = _claim(kind, name)
    if name.endswith(".*"):
        raise UserError(f"{name!r} is a family; write one of its members, {name[:-1]}<variant>")
    target = _load(claim, name)
    if not claim.entry.name.endswith(".*"):
        return target, {}
    return target, {"variant": _check_member(kind, claim, name, _variants(claim, target))}


class _BrokenError(UserError):
    """A component cannot be used, no matter what else is installed."""


def _variants(claim: _Claim, target: Any) -> list[str]:
    """Return the members of a family; raise a _BrokenError, or the class's own UserError."""
    try:
        return [str(member) for member in target.variants()]
    except UserError:
        raise
    except FAILURES as error:
        reason = f"{type(error).__name__}: {words_of(error)}"
        raise _BrokenError(
            f"{_broken(claim)}: its variants() cannot be listed: {reason}"
        ) from error


def _check_family(kind: Kind, claim: _Claim, target: Any, name: str) -> None:
    """Refuse a family that does not list its members, and a name that is not one of them."""
    try:
        members = _variants(claim, target)
    except UserError as error:
        if name.endswith(".*") and not isinstance(error, _BrokenError):
            return  # its package is missing: not broken, though none of it can be used
        raise
    if not name.endswith(".*"):
        _check_member(kind, claim, name, members)


def _check_member(kind: Kind, claim: _Claim, name: str, known: list[str]) -> str:
    """Return the variant in a member's name; raise a UserError if the family does not have it."""
    variant = name.split(".", 1)[1]
    if variant not in known:
        family = claim.entry.name
        hint = suggest(family[:-1] + member for member in near(variant, known))
        hint = hint or f"; `zoo show {kind} {family}` lists them"
        raise UserError(f"{family[:-2]} has no {noun_of(kind)} named {variant!r}{hint}")
    return variant


def _broken(claim: _Claim) -> str:
    return f"{claim.entry.name!r} of {claim.distribution} is broken"


def _load(claim: _Claim, name: str) -> Any:
    try:
        target = claim.load()
    except FAILURES as error:
        reason = f"{type(error).__name__}: {words_of(error)}"
        raise _BrokenError(f"{name!r} of {claim.distribution} is broken: {reason}") from error
    if not callable(target):
        _, _, of_module = claim.entry.value.partition(":")
        reason = "it is not a class" if of_module else source.no_class(claim.entry.value)
        raise _BrokenError(f"{name!r} of {claim.distribution} is broken: {reason}")
    if claim.entry.name.endswith(".*") and not hasattr(target, "variants"):
        reason = "its class has no variants(), a static method that lists the members of the family"
        raise _BrokenError(f"{_broken(claim)}: {reason}")
    return target


def _out_of_range(arguments: Mapping[str, Any]) -> list[Misfit]:
    """Return the numbers that no loss can use: float32 would overflow, or a size is below 1."""
    from zoo.support.values import show

    found = []
    for key, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not (value == 0 or _LEAST_NUMBER <= abs(value) <= _MOST_NUMBER):
            wanted = "must be 0 or a number of magnitude 1e-12 to 1e9"
            found.append(Misfit(key, f"{wanted}, not {show(value)}"))
        elif key in SIZES and value < 1:
            found.append(Misfit(key, f"must be at least 1, not {value}"))
    return found


def _wrong_sizes(arguments: Mapping[str, Any], runtime: Mapping[str, Any]) -> list[Misfit]:
    """Return the user's sizes that contradict those of the experiment."""
    found = []
    for key in SIZES & set(arguments) & set(runtime):
        given, real = arguments[key], runtime[key]
        if given < real or (given > real and key != "num_classes"):  # spare classes do no harm
            message = f"is {given}, but the experiment has {real}; leave it out"
            found.append(Misfit(key, message))
    return found


def supplied(kind: str) -> frozenset[str]:
    """Return the arguments that the runtime supplies to a kind; parts of losses count as losses."""
    return RUNTIME.get(kind, RUNTIME["losses"])


def _nested_problems(
    target: Any, kind: Kind, arguments: Mapping[str, Any], runtime: Collection[str] | None
) -> list[Misfit]:
    """Return what is wrong with the components among some arguments."""
    found = [
        Misfit(".".join(map(str, keys)), message)
        for key, place in registry_nested.places(target, kind, arguments).items()
        for keys, message in registry_nested.faults(place, arguments[key], (key,))
    ]

    def check_one(keys: tuple[str | int, ...], spec: registry_nested.Spec) -> None:
        for argument, message in problems(
            cast("Kind", spec.kind), spec.name, spec.arguments, runtime
        ):
            at = ".".join([*map(str, keys), *filter(None, [argument or _name_key(spec)])])
            found.append(Misfit(at, message))

    registry_nested.rewrite(target, kind, arguments, check_one)
    return found


def _name_key(spec: registry_nested.Spec) -> str:
    """Return the key of a nested component's name; empty if only the name was written."""
    return "name" if spec.arguments else ""


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str):
        raise UserError(f"kind must be {one_of(KINDS)}, not {shown(kind)}")
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"; there are {', '.join(KINDS)}"
        raise UserError(f"there is no kind of component named {kind!r}{hint}")


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str):
        raise UserError(f"names of {kind} are text, not {shown(name)}")


def _unknown(kind: Kind, name: str) -> str:
    """Return the message for an unknown name: other kinds that have it, and similar names."""
    others = one_of([noun_of(other) for other in kinds_of(name)])
    said = f"there is no {noun_of(kind)} named {name!r}" + (f", but a {others}" if others else "")
    if ":" in name:  # never imported: a config is not trusted
        return f"{said}; give the class a name: an entry point of its package in zoo.{kind}"
    members = _members(kind)
    found = [member for member in members if member.split(".", 1)[1] == name]
    found = found or near(name, [*names(kind), *pml_names(kind)]) or near(name, members)
    return said + (suggest(found) or f"; `zoo list {kind}` shows what there is")


def _members(kind: Kind) -> list[str]:
    """Return the members of the usable families of a kind; imports them."""
    found = []
    for family in names(kind):
        if family.endswith(".*"):
            with contextlib.suppress(UserError):
                claim = _claim(kind, family)
                members = _variants(claim, _load(claim, family))
                found += [family[:-1] + member for member in members]
    return found


def _claimed_twice(name: str, found: list[_Claim]) -> str:
    owners = " and ".join(f"{c.distribution} ({c.entry.value})" for c in found)
    return f"the name {name!r} is claimed by {owners}; uninstall one of them"


def noun_of(kind: Kind) -> str:
    """Return the singular of a kind, for messages."""
    return registry_nested.one_of_kind(kind)


def _first_line(target: Any) -> str:
    return source.summary_of(documentation(target), getattr(target, "__name__", ""))
