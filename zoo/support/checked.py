"""Arguments of public functions, compared with their annotations before the function runs.

    @checked
    def search(images: Sequence[str], k: Count = 10) -> ...

A wrong type raises one sentence, ``search(): k must be a whole number 1 or more, not 0.5``. Values
of an equivalent type are converted: an iterator to a list, a NumPy integer to an int. Types that
cannot be resolved at runtime are not checked.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union

from zoo.errors import UserError, one_of, suggest
from zoo.support.near import near
from zoo.support.text import printable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LONGEST = 60  # characters of a value that a message shows

_NAMES: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    os.PathLike: "a path",
    type(None): "None",
    type: "a class",
    object: "anything",
}

_NUMBERS = {"integer": "whole numbers", "floating": "floats", "number": "numbers"}


class Between(NamedTuple):
    """The range of a number, both ends included."""

    least: float
    most: float = float("inf")

    def __str__(self) -> str:
        endless = self.most == float("inf")
        return f"{self.least} or more" if endless else f"from {self.least} to {self.most}"


Count = Annotated[int, Between(1)]
"""How many of something: 1 or more."""

Natural = Annotated[int, Between(0)]
"""How many of something: 0 or more."""

Workers = Annotated[int, Between(0, 1024)]
"""The number of worker processes."""

Share = Annotated[float, Between(0, 1)]
"""A fraction of a whole."""


class _MisfitError(Exception):
    """A value is not of the wanted type; if a part of it is at fault: the place and the part."""


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that raises a UserError for arguments that contradict its annotations."""
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return _hints(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which raises Python's own error
        for name, value in given.arguments.items():
            if name in hints():
                many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                one: Any = hints()[name]
                wanted = types.GenericAlias(tuple, (one, ...)) if many else one
                given.arguments[name] = _argument(function, name, wanted, value)
        return function(*given.args, **given.kwargs)

    return call


def choose(what: str, value: str, known: Iterable[str]) -> str:
    """Return a value if it is one of those known; else raise a UserError."""
    known = list(known)
    if value not in known:
        hint = suggest(near(value, known)) or f"; there are {', '.join(known)}"
        raise UserError(f"there is no {what} {printable(repr(value))}{hint}")
    return value


def must_be(wanted: str, value: Any) -> str:
    """Return "must be x, not y" for a value of any type."""
    return f"must be {wanted}, not {shown(value)}"


def shown(value: Any) -> str:
    """Return a value, or its type, in a few printable characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is not None and not isinstance(value, bool | int | float | str | bytes):
        name = type(value).__name__
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            kind = str(value.dtype).removeprefix("torch.")
            return f"{kind} of shape {tuple(value.shape)}"
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    try:
        text = printable(repr(value))
    except ValueError:  # an int of more digits than Python writes
        return "a whole number of thousands of digits"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _argument(function: Callable[..., Any], name: str, wanted: Any, value: Any) -> Any:
    try:
        return _fit(wanted, value)
    except _MisfitError as error:
        where = function.__qualname__.removesuffix(".__init__").removesuffix(".__call__")
        problem = (
            f"{where}(): {name} {must_be(_in_words(wanted), value)}{_suggestion(wanted, value)}"
        )
        if error.args:
            place, part = error.args
            problem = f"{where}(): {name} must be {_in_words(wanted)}; {name}{place} {shown(part)}"
        raise UserError(problem) from None


def _hints(function: Any) -> dict[str, Any]:
    """Return the types of the parameters, except those that cannot be resolved at runtime."""
    plain = inspect.unwrap(function)
    found: dict[str, Any] = {}
    scope = dict(plain.__globals__)
    for name, annotation in plain.__annotations__.items():
        one = types.SimpleNamespace(__annotations__={name: annotation}, __module__=None)
        try:
            found |= typing.get_type_hints(one, scope, include_extras=True)
        except Exception:  # noqa: BLE001 - names imported for type checkers only may raise anything
            continue
    found.pop("return", None)
    return found


def _meaning(wanted: Any) -> Any:
    """Return what an alias of a ``type`` statement, such as NumPy 2.5's NDArray, stands for."""
    alias = typing.get_origin(wanted) or wanted
    stands_for = getattr(alias, "__value__", None)
    if stands_for is None:
        return wanted
    inner = typing.get_args(wanted)
    return _meaning(stands_for[inner] if inner else stands_for)


# ---- whether a value fits


def _fit(wanted: Any, value: Any) -> Any:
    """Return a value, converted if need be, or raise _MisfitError if it is not of the type."""
    wanted = _meaning(wanted)
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (Union, types.UnionType):
        return _fit_one(inner, value)
    if origin is Annotated:
        return _fit_between(_fit(inner[0], value), inner[1:])
    if origin is Literal:
        return _require(any(type(value) is type(one) and value == one for one in inner), value)
    if wanted in (int, float, str, bool, None, type(None)):
        return _fit_plain(wanted, value)
    if (origin or wanted) in (Path, os.PathLike):
        return _require(isinstance(value, str | os.PathLike) and _is_text(value), value)
    if _is_array(origin):
        array: type = origin
        return _require(isinstance(value, array) and _has_dtype(inner, value), value)
    if isinstance(origin, type):
        return _fit_container(origin, inner, value)
    if wanted is Any or getattr(wanted, "_is_protocol", False):
        return value  # from Python 3.11 on, Any is a class
    if isinstance(wanted, type):
        plain: type = wanted
        return _require(isinstance(value, plain), value)
    return value  # an annotation that cannot be checked


def _require(fits: bool, value: Any) -> Any:
    if not fits:
        raise _MisfitError
    return value


def _fit_one(choices: Iterable[Any], value: Any) -> Any:
    misfit = _MisfitError()
    for choice in choices:
        try:
            return _fit(choice, value)
        except _MisfitError as error:
            misfit = error if error.args else misfit
    raise misfit


def _fit_part(wanted: Any, value: Any, index: str, place: str = " is") -> Any:
    """Fit a part of a value; a _MisfitError says where it is."""
    try:
        return _fit(wanted, value)
    except _MisfitError as error:
        inner, part = error.args or (place, value)
        raise _MisfitError(index + inner, part) from None


def _fit_between(value: Any, limits: Iterable[Any]) -> Any:
    for limit in limits:
        if isinstance(limit, Between):
            _require(limit.least <= value <= limit.most, value)
    return value


def _fit_plain(wanted: Any, value: Any) -> Any:
    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # NumPy's
    if wanted is bool:
        return bool(_require(is_bool, value))
    if is_bool or wanted in (None, type(None)):
        return _require(value is None and wanted in (None, type(None)), value)
    if wanted is int:
        try:
            return operator.index(value)
        except TypeError:
            raise _MisfitError from None
    return _require(isinstance(value, Real if wanted is float else str), value)


def _fit_container(origin: type, inner: tuple[Any, ...], value: Any) -> Any:
    """Return a collection whose items fit; an iterator becomes a list."""
    if issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), value)
        for key, one in value.items() if inner else ():
            _fit_part(inner[0], key, "", " has the key")
            _fit_part(inner[1], one, f"[{shown(key)}]")
        return value
    if origin not in (Iterable, Sequence, list, tuple, Set):
        return _require(isinstance(value, origin), value)
    wrong = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    if wrong or (origin is not Iterable and isinstance(value, Set)):
        raise _MisfitError
    items = value if isinstance(value, list | tuple) else list(value)
    fitted = items
    if inner:
        fitted = [_fit_part(inner[0], item, f"[{i}]") for i, item in enumerate(items)]
    same = all(one is other for one, other in zip(fitted, items, strict=True))
    return items if same else fitted


def _is_text(path: Any) -> bool:
    return isinstance(os.fspath(path), str)


def _is_array(origin: Any) -> bool:
    """Return whether a type is a NumPy array's, without the slow import of NumPy."""
    return getattr(origin, "__module__", "") == "numpy" and origin.__name__ == "ndarray"


def _has_dtype(inner: tuple[Any, ...], value: Any) -> bool:
    """Return whether an array has the wanted dtype or converts to it, as 64 bits do to 32."""
    import numpy as np

    scalar = _scalar(inner)
    if not isinstance(scalar, type):
        return True
    if scalar in (np.integer, np.floating, np.number):
        return np.issubdtype(value.dtype, scalar)
    return np.can_cast(value.dtype, scalar, "same_kind")


def _scalar(inner: tuple[Any, ...]) -> Any:
    """Return X of NDArray[X], without X's own parameters."""
    for one in inner:
        if getattr(typing.get_origin(one), "__name__", "") == "dtype":
            (scalar,) = typing.get_args(one)
            return typing.get_origin(scalar) or scalar
    return None


# ---- types in words


def _in_words(wanted: Any) -> str:
    """Return a type in words."""
    wanted = _meaning(wanted)
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (Union, types.UnionType):
        return one_of(list(dict.fromkeys(map(_in_words, inner))))
    if origin is Annotated:
        return " ".join([_in_words(inner[0]), *(str(one) for one in inner[1:])])
    if origin is Literal:
        return one_of([repr(one) for one in inner])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        parts = zip(("key", "value"), inner, strict=False)
        each = [f"each {part} is {_in_words(one)}" for part, one in parts if one is not Any]
        return "a dict" + (f" in which {' and '.join(each)}" if each else "")
    if origin in (Iterable, Sequence, list, tuple, Set):
        items = f" in which each item is {_in_words(inner[0])}" if inner[:1] != (Any,) else ""
        return f"a list{items}"
    if _is_array(origin):
        name = getattr(_scalar(inner), "__name__", "")
        return "a NumPy array" + (f" of {_NUMBERS.get(name, name)}" if name else "")
    named = origin or wanted
    return _NAMES.get(named) or str(getattr(named, "__name__", named))


def _suggestion(wanted: Any, value: object) -> str:
    """Return a hint if a text is close to one of those that are allowed."""
    known = [one for one in typing.get_args(wanted) if isinstance(one, str)]
    literal = typing.get_origin(wanted) is Literal and isinstance(value, str)
    return suggest(near(str(value), known)) if literal else ""
