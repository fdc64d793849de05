"""Constructor arguments: those that a class takes, and what is wrong with given ones."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from zoo.errors import did_you_mean

_T = TypeVar("_T")


class Parameter(NamedTuple):
    """A constructor argument; ``default`` is ``REQUIRED`` if it has none."""

    name: str
    default: Any
    annotation: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED


class Misfit(NamedTuple):
    """What is wrong with an argument, or, if ``argument`` is None, with the whole component."""

    argument: str | None
    message: str


REQUIRED: Any = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _cached(function: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Cache a function's results: a sweep asks for the same ones a thousand times."""
    kept = functools.lru_cache(maxsize=256)(function)

    @functools.wraps(function)
    def cached(key: Any) -> _T:
        try:
            hash(key)
        except TypeError:
            return function(key)
        return kept(key)

    return cached


def parameters_of(target: Any) -> tuple[Parameter, ...]:
    """Return the arguments that a class or function takes.

    Where a constructor passes ``**kwargs`` on, as in pytorch-metric-learning, the arguments are
    collected along the method resolution order; otherwise a typo would go unnoticed.
    """
    if not inspect.isclass(target):
        return _own(target)[0]
    found: dict[str, Parameter] = {}
    settled: set[str] = set()
    for cls in target.__mro__:
        if cls is object or "__init__" not in vars(cls):
            continue
        constructor = vars(cls)["__init__"]
        own, passes_on = _own(constructor)
        for parameter in own:
            if parameter.name not in settled:
                found.setdefault(parameter.name, parameter)
        if not passes_on:
            break
        given, taken = _look_inside(constructor)
        found |= {name: Parameter(name, REQUIRED) for name in sorted(taken - set(found))}
        settled |= given
    return tuple(found.values())


def check(
    owner: str,
    target: Any,
    given: Mapping[str, Any],
    supplied: Collection[str] = (),
    reserved: Collection[str] = (),
    hidden: Collection[str] = (),
) -> list[Misfit]:
    """Return what is wrong with the given arguments.

    Args:
        owner: the component's name in messages.
        target: the class or function.
        given: the user's arguments.
        supplied: names of arguments that the runtime provides, if the target takes them.
        reserved: names that the user may not give, such as the variant of a family.
        hidden: names that are not suggested, since users do not need them.
    """
    known = {p.name: p for p in parameters_of(target) if p.name not in reserved}
    shown = [name for name in known if name not in hidden]
    found = [Misfit(key, _unknown(key, owner, shown)) for key in given if key not in known]
    for name, parameter in known.items():
        if name in given:
            message = _mismatch(parameter, given[name])
            if message:
                found.append(Misfit(name, message))
        elif parameter.required and name not in supplied:
            found.append(Misfit(name, f"missing argument of {owner}"))
    return found


def type_of(parameter: Parameter) -> Any:
    """Return the type that an argument must have; None if it is unknown."""
    if parameter.annotation is inspect.Parameter.empty:
        return _guess(parameter.default)
    return parameter.annotation


@_cached
def _own(function: Any) -> tuple[tuple[Parameter, ...], bool]:
    """Return the named parameters of a function, and whether it accepts ``**kwargs``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return (), False
    hints = _hints(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    named = tuple(
        Parameter(p.name, p.default, hints.get(p.name, p.empty))
        for p in parameters
        if p.kind not in _VARIADIC
    )
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _look_inside(function: Any) -> tuple[set[str], set[str]]:
    """Return the arguments that a constructor passes to its parent, and those it reads in kwargs.

    The user may not give the former, and must give the latter, which no signature shows.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set(), set()
    given, taken = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".__init__"):
            given |= {keyword.arg for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "kwargs":
            taken.add(str(ast.literal_eval(node.slice)))
    return given, taken


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - a plugin's annotations may name what cannot be imported
        return {}


def _unknown(key: str, owner: str, known: Collection[str]) -> str:
    hint = did_you_mean(key, known)
    if not hint:
        hint = "; it takes " + ", ".join(known) if known else "; it takes none"
    return f"unknown argument of {owner}{hint}"


def _mismatch(parameter: Parameter, value: Any) -> str | None:
    """Return what is wrong with the type of a value, by the annotation, else by the default."""
    annotation = type_of(parameter)
    if annotation is None:
        return None
    import pydantic

    from zoo.support.values import in_words, must_be

    try:
        adapter = _adapter(annotation)
    except Exception:  # noqa: BLE001 - an annotation that pydantic does not understand
        return None
    try:
        _validate(adapter, value)
    except pydantic.ValidationError:
        wanted = inspect.formatannotation(annotation).replace("typing.", "")
        return must_be(in_words(wanted), value)
    return None


@_cached
def _adapter(annotation: Any) -> Any:
    """Return pydantic's validator of a type."""
    import pydantic

    return pydantic.TypeAdapter(
        annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True)
    )


def _validate(adapter: Any, value: Any) -> None:
    """Validate a value strictly, except that a list may stand for a tuple or a set, as in YAML."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        adapter.validate_python(value, strict=True)
    else:
        adapter.validate_json(text, strict=True)


def _guess(default: Any) -> Any:
    """Return the type that a default implies; None if it implies none."""
    if isinstance(default, bool):
        return bool
    if isinstance(default, int | float):
        return float
    if isinstance(default, str):
        return int | str if default == "all" else str  # "all" may be replaced by a number
    return None
