"""Configs: YAML -> checked specs, all problems of a file in one go, each with its line.

    config = load("ice_glyphs", ["loss.scale=32", "seed=1"])

What a config may hold is said in zoo.schema; what a component takes, the registry asks its class.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from zoo import _yaml, registry
from zoo._sentences import sentence, settings_named
from zoo._words import show
from zoo._yaml import Key, Keys, Node, Place, Problem, kind_of, merge
from zoo.base import RUNTIME
from zoo.errors import UserError, did_you_mean, suggest
from zoo.registry import Kind
from zoo.schema import COMPONENTS, NAMED, Config, contradictions, dig

_COMMAND_LINE = "command line"
_MAX_PARENTS = 20


def load(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config and check all of it.

    Args:
        source: a path, or the name of a shipped config.
        overrides: settings such as ``loss.scale=32``, laid over the file all at once. The value is
            YAML: nothing after the ``=`` is null.

    Raises:
        UserError: with a line for every problem, as
            ``configs/x.yaml:12: loss.scael: unknown argument of ice; did you mean scale?``.
    """
    problems: list[Problem] = []
    path = _find(source, Path())
    if path is None:
        raise UserError(_not_found(str(source)))
    tree = _Files(problems).read(path, ())
    given = _read_overrides(overrides, problems)
    if tree is None:
        raise _error(problems)
    tree = merge(tree, given)
    data = {"name": path.stem, **tree.plain()}
    seen = {problem.keys for problem in problems}
    for keys, message in _check(data):
        if keys not in seen:  # one problem is enough for a place
            seen.add(keys)
            problems.append(Problem(tree.nearest(keys), keys, message))
    if problems:
        raise _error(problems)
    return Config.model_validate(data)


def dump(config: Config) -> str:
    """Return YAML that loads as an equal config."""
    return _yaml.dump(config.resolved())


def shipped() -> list[str]:
    """Return the names of the configs that come with the zoo."""
    return sorted(name for name in _library() if not name.startswith("base/"))


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config; arguments of components are not part of it."""
    return Config.model_json_schema()


# ---- files


class _Files:
    """Reads a file and those that it extends, each of them once."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._trees: dict[Path, Node | None] = {}

    def read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        """Return a file laid over its parents; None, and a problem more, if that is impossible.

        Args:
            path: the file.
            chain: the files that led to it, each extending the next.
        """
        if path.resolve() not in self._trees:
            self._trees[path.resolve()] = self._read(path, (*chain, path))
        return self._trees[path.resolve()]

    def _read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        own = _yaml.read(path, _shown(path), self._problems)
        if own is None:
            return None
        if not isinstance(own.value, dict):
            message = "must be a map of settings" if own.value is not None else "is empty"
            self._problems.append(Problem(own.place, (), message))
            return None
        _spell_out(own)
        extends = own.value.pop("extends", None)
        parents = [] if extends is None else self._parents(extends, chain)
        if None in parents:
            return None
        tree = functools.reduce(merge, [*cast("list[Node]", parents), own])
        return Node(tree.value, own.place)

    def _parents(self, extends: Node, chain: tuple[Path, ...]) -> list[Node | None]:
        nodes = extends.value if isinstance(extends.value, list) else [extends]
        if all(isinstance(node.value, str) for node in nodes):
            return [self._parent(node, chain) for node in nodes]
        message = f"must be the name of a file or a list of them, not {show(extends.plain())}"
        self._problems.append(Problem(extends.place, ("extends",), message))
        return [None]

    def _parent(self, node: Node, chain: tuple[Path, ...]) -> Node | None:
        path = _find(node.value, chain[-1].parent)
        names = " -> ".join([*map(_shown, chain), _shown(path) if path else node.value])
        if path is None:
            message = f"{_not_found(node.value)} ({names})"
        elif path.resolve() in [parent.resolve() for parent in chain]:
            message = f"a file cannot extend itself: {names}"
        elif len(chain) > _MAX_PARENTS:
            message = f"more than {_MAX_PARENTS} files extend each other: {names}"
        else:
            return self.read(path, chain)
        self._problems.append(Problem(node.place, ("extends",), message))
        return None


def _find(source: str | Path, folder: Path) -> Path | None:
    """Return the file of that path, seen from a folder, or else the shipped one of that name."""
    if _what_is(folder / source) == "file":
        return folder / source
    return _library().get(_bare(source))


def _what_is(path: Path) -> Literal["file", "folder", "nothing"]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "nothing"
    except (OSError, ValueError):  # a name too long, a null byte
        return "nothing"


def _bare(source: str | Path) -> str:
    """Return what a shipped config would be called, from any way to write it."""
    name = Path(source).as_posix()
    return name.removeprefix("configs/").removesuffix(".yaml").removesuffix(".yml")


def _library() -> dict[str, Path]:
    """Return the shipped configs by name, those among them that are only to be extended."""
    folder = Path(importlib.import_module("zoo.configs").__path__[0])
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
    }


def _not_found(source: str) -> str:
    if _what_is(Path(source)) == "folder":
        return f"{source!r} is a folder; name a file in it"
    hint = did_you_mean(_bare(source), _library()) or "; `zoo config` lists what ships"
    return f"there is no config {source!r}, neither as a file nor shipped{hint}"


def _shown(path: Path) -> str:
    """Return a path as messages show it: from here, if it is below."""
    path = Path(os.path.normpath(path))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# ---- overrides


def _read_overrides(texts: Sequence[str], problems: list[Problem]) -> Node:
    """Return the settings of the command line as one tree."""
    tree = Node({}, Place(_COMMAND_LINE))
    for text in texts:
        node = _read_override(text, problems)
        if node is not None:
            tree = _join(tree, node, (), problems)
    return tree


def _read_override(text: str, problems: list[Problem]) -> Node | None:
    place = Place(f"{_COMMAND_LINE}: {text}")
    path, equals, value = text.partition("=")
    keys = tuple(_key(part) for part in path.strip().split("."))
    if not equals or "" in keys:
        problems.append(Problem(place, (), "must be of the form key.key=value: loss.scale=32"))
        return None
    if keys == ("extends",):
        problems.append(Problem(place, keys, "only a file can extend another"))
        return None
    node = _yaml.parse(value, _COMMAND_LINE, problems, place, keys)
    if node is None:
        return None
    for key in reversed(keys):
        node = Node({key: node}, place)
    _spell_out(node)
    return node


def _key(part: str) -> Key:
    return int(part) if kind_of(part) == "int" and part.isdigit() else part


def _join(one: Node, other: Node, keys: Keys, problems: list[Problem]) -> Node:
    """Put two settings together, whichever came first; none may be given twice."""
    if not isinstance(one.value, dict) or not isinstance(other.value, dict):
        message = f"given twice: {str(one.place).removeprefix(_COMMAND_LINE + ': ')} as well"
        problems.append(Problem(other.place, keys, message))
        return one
    joined = dict(one.value)
    for key, node in other.value.items():
        at = (*keys, key)
        joined[key] = _join(joined[key], node, at, problems) if key in joined else node
    return Node(joined, one.place)


def _spell_out(tree: Node) -> None:
    """Make ``loss: ice`` of a tree ``loss: {name: ice}``."""
    for *sections, key in NAMED:
        parent = tree
        for section in sections:
            if isinstance(parent.value, dict) and section in parent.value:
                parent = parent.value[section]
        node = parent.value.get(key) if isinstance(parent.value, dict) else None
        if node is not None and isinstance(node.value, str):
            parent.value[key] = Node({"name": node}, node.place)


# ---- checks


def _check(data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield all that is wrong with a config; where a component is right, fill in its defaults."""
    for keys, kind in COMPONENTS.items():
        *sections, key = keys
        parent = dig(data, sections)
        spec = dig(data, keys)
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
            continue  # what pydantic will say
        if all(isinstance(argument, str) for argument in spec):
            found = list(_component_problems(kind, keys, spec))
            yield from found
            if not found:
                parent[key] = _with_defaults(kind, spec)
    try:
        Config.model_validate(data)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            keys, message = sentence(problem)
            if problem["type"] == "extra_forbidden":
                message = _elsewhere(data, keys) or message
            yield keys, message
        yield from contradictions(data)


def _elsewhere(data: dict[str, Any], keys: Keys) -> str | None:
    """Return what to say of an unknown key that has its place in another section."""
    key = str(keys[-1])
    settings = {at: what for at, what in settings_named(key).items() if at != _dotted(keys)}
    components = [
        _dotted((*at, key))
        for at, kind in COMPONENTS.items()
        if key in _arguments(kind, dig(data, (*at, "name"))) - RUNTIME[kind]
    ]
    places = [*settings, *components]
    if len(places) == 1 and settings:
        places = [f"{places[0]} ({settings[places[0]]})"]
    return f"unknown key{suggest(places)}" if places else None


def _arguments(kind: Kind, name: object) -> set[str]:
    """Return what a component takes; nothing where there is no such component."""
    try:
        return {p.name for p in registry.describe(kind, cast("str", name)).parameters}
    except UserError:
        return set()


# ---- components


def _with_defaults(kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a component with the defaults of its arguments, in the order of its signature.

    The saved config then says what was run, even if a default changes later. None is left out: it
    mostly stands for something that the class decides.
    """
    filled = {"name": spec["name"]}
    for parameter in registry.describe(kind, spec["name"]).parameters:
        plain = type(parameter.default) in (bool, int, float, str)
        if parameter.name in spec or (plain and parameter.name not in RUNTIME[kind]):
            filled[parameter.name] = parameter.default
    filled |= spec
    # A stranger's default may break the stranger's annotation.
    return spec if any(_component_problems(kind, (), filled)) else filled


def _component_problems(kind: Kind, keys: Keys, spec: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield what the registry has to say, in the words of a config."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    for argument, message in registry.problems(kind, spec["name"], arguments):
        inner = tuple((argument or "name").split("."))
        if message.startswith("missing"):
            message += f"; give it in the file, or as {_dotted((*keys, *inner))}=..."
        yield (*keys, *inner), message


def _error(problems: list[Problem]) -> UserError:
    return UserError("\n".join(_line(problem) for problem in sorted(problems, key=_rank)))


def _line(problem: Problem) -> str:
    """Return a problem as one line; what a stranger's file holds cannot steer a terminal."""
    dotted = _dotted(problem.keys)
    if str(problem.place).startswith(f"{_COMMAND_LINE}: {dotted}="):
        dotted = ""
    text = ": ".join(filter(None, (str(problem.place), dotted, problem.message)))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _rank(problem: Problem) -> tuple[bool, Place]:
    return problem.place.file.startswith(_COMMAND_LINE), problem.place


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys))
