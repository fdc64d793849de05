"""From YAML files to checked configs; all problems are reported at once, each with its line.

    config = load("ice_glyphs", ["loss.scale=32", "seed=1"])
    variants = load_all("ice_glyphs", sweeps=["loss.scale=16,32"], seeds="0,1,2")

The schema defines what a config may hold; the registry knows which arguments a class takes.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from zoo import registry
from zoo.base import RUNTIME
from zoo.config import overrides as config_overrides
from zoo.config import schedules, sweep
from zoo.config.messages import sentence, settings_named
from zoo.config.overrides import COMMAND_LINE, spell_out
from zoo.config.schema import (
    COMPONENTS,
    SCHEDULED,
    Config,
    ConfigFile,
    components_in,
    contradictions,
    dig,
)
from zoo.config.synonyms import meant_by
from zoo.errors import UserError, did_you_mean, suggest
from zoo.registry import Kind, nested
from zoo.registry import source as registry_source
from zoo.registry.components import SIZES
from zoo.support import yaml
from zoo.support.checked import checked
from zoo.support.text import printable
from zoo.support.values import show
from zoo.support.yaml import Keys, Node, Place, Problem, keys_of, merge

_MAX_CHAIN = 20  # files of which each extends the next
_MAX_PARENTS = 100  # files that one file extends
_MAX_REPORTED = 50  # problems
SET_BY_RUN = "the run sets it; leave it out"


@dataclass(frozen=True)
class Variant:
    """One of the experiments of a config.

    Attributes:
        config: the experiment.
        settings: those that differ from the other experiments, by dotted key.
    """

    config: Config
    settings: dict[str, Any]


@checked
def load(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config of one experiment and check all of it.

    Args:
        source: a path, or the name of a shipped config.
        overrides: settings such as ``loss.scale=32``, which replace those of the file. The value is
            YAML; an empty one is null.

    Raises:
        UserError: with a line for every problem, such as
            ``configs/x.yaml:12: loss.scael: unknown argument of ice; did you mean scale?``.
    """
    variants = load_all(source, overrides)
    if len(variants) > 1:
        raise UserError(
            f"{source}: has {len(variants)} experiments (sweep, seeds), but one is needed; `zoo "
            "run` runs them all, sweep=null and seeds=null leave one"
        )
    return variants[0].config


@checked
def load_all(
    source: str | Path,
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    seeds: str | None = None,
) -> list[Variant]:
    """Read a config and check all of the experiments that it holds.

    Args:
        source: a path, or the name of a shipped config.
        overrides: settings such as ``loss.scale=32``, which replace those of the file.
        sweeps: values to try, such as ``loss.scale=16,32``; several sweeps multiply. Settings and
            sweeps of the command line replace the file's sweeps of the same keys.
        seeds: seeds to run each experiment with, such as ``0,1,2``.

    Raises:
        UserError: with a line for every problem of all experiments.
    """
    return _load_all(source, overrides, sweeps, seeds)


def load_run(path: Path) -> Config:
    """Read the config in a run folder, to use its network, without looking up components.

    Its loss or data set may come from plugins that are no longer installed. Components that are
    needed, such as the backbone, are checked when they are built. Raises as :func:`load`.
    """
    (variant,) = _load_all(path, (), (), None, look_up=False)
    return variant.config


def _load_all(
    source: str | Path,
    overrides: Sequence[str],
    sweeps: Sequence[str],
    seeds: str | None,
    *,
    look_up: bool = True,
) -> list[Variant]:
    """Read and check the experiments of a config; components only if they may be looked up."""
    problems: list[Problem] = []
    _check_here()
    path = _find(source, Path())
    if path is None:
        raise UserError(_not_found(str(source)))
    tree = _Files(problems).read(path, ())
    given = config_overrides.read(overrides, problems)
    line = sweep.of_command_line(sweeps, seeds, problems)
    if tree is None:
        raise _error(problems)
    tree = merge(tree, given)
    entries = sweep.combine(sweep.of_file(tree, problems), line, given, problems)
    told = {problem.keys for problem in problems}
    judged: _Judged = {}
    check = functools.partial(_check, look_up=look_up, judged=judged)
    variants = [_variant(path.stem, tree, entry, told, problems, check) for entry in entries]
    if problems:
        raise _error(list(dict.fromkeys(problems)))
    return variants


def _variant(
    name: str,
    tree: Node,
    entry: sweep.Entry,
    told: set[Keys],
    problems: list[Problem],
    check: Callable[[dict[str, Any]], Iterable[tuple[Keys, str]]],
) -> Variant:
    """Check one experiment and add its problems."""
    tree = functools.reduce(merge, [tree, *sweep.trees(entry)])
    data = {"name": name, **tree.plain()}
    seen = set(told)
    for keys, message in check(data):
        if keys not in seen:  # one problem per key is enough
            seen.add(keys)
            problems.append(_placed(name, tree, keys, message))
    config = Config.model_construct() if problems else Config.model_validate(data)
    return Variant(config, {dotted: node.plain() for dotted, node in entry.items()})


def _placed(name: str, tree: Node, keys: Keys, message: str) -> Problem:
    """Return a problem with its place.

    A missing argument is reported for the file that the user named, not for one that it extends.
    """
    if not message.startswith("missing argument"):
        return Problem(tree.nearest(keys), keys, message)
    setting = f"{_dotted(keys)}={'FOLDER' if keys[-1] == 'root' else '...'}"
    place = tree.nearest(keys)
    ours = {_shown(path) for path in _library().values()}
    if place.file in ours:
        place = Place(tree.place.file)
    if place.file in ours:
        return Problem(Place(name), keys, f"{message}; give it as {setting}")
    return Problem(place, keys, f"{message}; give it in the file, or as {setting}")


def guess(source: str | Path, overrides: Sequence[str] = ()) -> Config | None:
    """Return what :func:`load` returns for a valid config, but import no component.

    The defaults of components are read from their sources. Returns None if these do not show them,
    or if something is wrong; values that a component itself would refuse are not noticed. Raises a
    UserError if the working folder is gone.
    """
    problems: list[Problem] = []
    _check_here()
    path = _find(source, Path())
    if path is not None and not path.is_file():  # a pipe can be read only once, by load
        return None
    tree = _Files(problems).read(path, ()) if path else None
    given = config_overrides.read(overrides, problems)
    if path is None or tree is None or problems:
        return None
    data = {"name": path.stem, **merge(tree, given).plain()}
    for keys, kind in COMPONENTS.items():
        spec = dig(data, keys)
        if isinstance(spec, dict) and isinstance(spec.get("name"), str):
            known = _defaults_in_source(kind, spec["name"])
            if known is None or _may_be_nested(kind, spec):
                return None
            dig(data, keys[:-1])[keys[-1]] = known | spec
    try:
        return Config.model_validate(data)
    except ValidationError:
        return None


def set_by_run(kind: Kind) -> frozenset[str]:
    """Return the arguments that no config may give, such as the split of a data set.

    The sizes of a loss may be given; they are compared with the run when the loss is built.
    """
    return RUNTIME.get(kind, frozenset()) - (SIZES if kind == "losses" else frozenset())


@checked
def dump(config: Config) -> str:
    """Return YAML that loads as an equal config."""
    return yaml.dump(config.resolved())


def dump_all(variants: Sequence[Variant]) -> str:
    """Return YAML that loads as equal experiments: shared settings and a sweep."""
    resolved = [variant.config.resolved() for variant in variants]
    grid = sweep.regroup([variant.settings for variant in variants], resolved)
    return yaml.dump(functools.reduce(sweep.shared, resolved) | grid)


def shipped() -> list[str]:
    """Return the names of the shipped configs."""
    return sorted(name for name in _library() if not name.startswith("base/"))


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config, without the arguments of components."""
    return ConfigFile.model_json_schema()


# ---- files


class _Files:
    """Reads a file and those that it extends, each once."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._trees: dict[Path, Node | None] = {}

    def read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        """Return a file merged over its parents; add a problem and return None if that fails.

        ``chain`` are the files that led to it, each extending the next.
        """
        if path.resolve() not in self._trees:
            self._trees[path.resolve()] = self._read(path, (*chain, path))
        return self._trees[path.resolve()]

    def _read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        named = len(chain) == 1  # by the user; it may be a pipe of the shell: <(...)
        own = yaml.read(path, _shown(path), self._problems, pipe=named)
        if own is None:
            return None
        if not isinstance(own.value, dict):
            message = "must be a map of settings" if own.value is not None else "is empty"
            self._problems.append(Problem(own.place, (), message))
            return None
        spell_out(own)
        extends = own.value.pop("extends", None)
        parents = [] if extends is None else self._parents(extends, chain)
        if None in parents:
            return None
        tree = functools.reduce(merge, [*cast("list[Node]", parents), own])
        return Node(tree.value, own.place)

    def _parents(self, extends: Node, chain: tuple[Path, ...]) -> list[Node | None]:
        nodes = extends.value if isinstance(extends.value, list) else [extends]
        named = all(isinstance(node.value, str) for node in nodes)
        if named and len(nodes) <= _MAX_PARENTS:
            return [self._parent(node, chain) for node in nodes]
        if named:
            message = f"must be at most {_MAX_PARENTS} files, not {len(nodes):,}"
        else:
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
        elif len(chain) > _MAX_CHAIN:
            message = f"more than {_MAX_CHAIN} files extend each other: {names}"
        else:
            return self.read(path, chain)
        self._problems.append(Problem(node.place, ("extends",), message))
        return None


def _check_here() -> None:
    """Raise a UserError if the working folder, to which paths are relative, is gone."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(f"the working folder is gone ({error.strerror}); cd to another") from error


def _find(source: str | Path, folder: Path) -> Path | None:
    """Return the file at a path relative to a folder, or else the shipped one of that name."""
    if _what_is(folder / source) == "file":
        return folder / source
    return _library().get(_bare(source))


def _what_is(path: Path) -> Literal["file", "folder", "nothing"]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "nothing"
    except (OSError, ValueError):  # a name that is too long or has a null byte
        return "nothing"


def _bare(source: str | Path) -> str:
    """Return the name of a shipped config, however it is written."""
    name = Path(source).as_posix()
    return name.removeprefix("configs/").removesuffix(".yaml").removesuffix(".yml")


def _library() -> dict[str, Path]:
    """Return the shipped configs by name, including those that are only meant to be extended.

    The folder also has the shapes of tables, which are not configs; see :mod:`zoo.tables.shapes`.
    """
    folder = Path(importlib.import_module("zoo.configs").__path__[0])
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
        if path.parent.name != "tables"
    }


def _not_found(source: str) -> str:
    if _what_is(Path(source)) == "folder":
        return f"{source!r} is a folder; name a file in it"
    name, library = _bare(source), _library()
    near = [other for other in library if other.endswith(f"/{name}")]
    hint = f"; did you mean {near[0]}?" if len(near) == 1 else did_you_mean(name, library)
    hint = hint or "; `zoo config` lists what ships"
    return f"there is no config {source!r}, neither as a file nor shipped{hint}"


def _shown(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder if it is in there."""
    path = Path(os.path.normpath(path))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# ---- checks


_Judged = dict[tuple[Keys, str], tuple[list[tuple[Keys, str]], dict[str, Any]]]


def _check(data: dict[str, Any], look_up: bool, judged: _Judged) -> Iterator[tuple[Keys, str]]:
    """Yield all problems of a config, and fill in the defaults of components that have none.

    Results are added to ``judged``: most experiments of a sweep have the same components.
    """
    sound: set[Keys] = set()
    for keys, kind in (components_in(data) if look_up else {}).items():
        *sections, key = keys
        parent = dig(data, sections)
        spec = dig(data, keys)
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
            continue  # pydantic reports it
        if all(isinstance(argument, str) for argument in spec):
            same = keys, repr(spec)
            if same not in judged:
                found = list(_component_problems(kind, keys, spec))
                judged[same] = found, spec if found else _with_defaults(kind, spec)
            problems, filled = judged[same]
            yield from problems
            parent[key] = copy.deepcopy(filled)
            if not problems:
                sound.add(keys)
    if not sound.isdisjoint({("loss",), ("miner",)}):
        yield from _untrainable(data, sound)
    if look_up:
        yield from _pointless_miner(data)
        yield from _other_space(data)
    try:
        Config.model_validate(data)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            keys, message = sentence(problem)
            if problem["type"] == "extra_forbidden":
                message = _misplaced(data, keys) or message
            yield keys, message
        yield from contradictions(data)


def _misplaced(data: dict[str, Any], keys: Keys) -> str | None:
    """Return the message for an unknown key that belongs elsewhere or has another name here."""
    key = str(keys[-1])
    sampler = _arguments("samplers", dig(data, ("sampler", "name"))) - RUNTIME["samplers"]
    meant = [at for at in meant_by(key, sampler) if at != _dotted(keys)]
    settings = {at: what for at, what in settings_named(key).items() if at != _dotted(keys)}
    components = [
        _dotted((*at, key))
        for at, kind in COMPONENTS.items()
        if key in _arguments(kind, dig(data, (*at, "name"))) - RUNTIME[kind]
    ]
    places = list(dict.fromkeys([*meant, *settings, *components]))
    described = {**settings_named(places[0].rpartition(".")[2]), **settings} if places else {}
    if len(places) == 1 and places[0] in described:
        places = [f"{places[0]} ({described[places[0]]})"]
    return f"unknown key{suggest(places)}" if places else None


def _arguments(kind: Kind, name: object) -> set[str]:
    """Return the arguments of a component; none if there is no such component."""
    try:
        return {p.name for p in registry.describe(kind, cast("str", name)).parameters}
    except UserError:
        return set()


# ---- components


def _with_defaults(kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a component with the defaults of its arguments, in the order of its signature.

    The saved config then says what was run, even if a default changes later. Defaults of None are
    left out: they mostly mean that the class decides.
    """
    filled = {"name": spec["name"]}
    for name, default, _ in registry.parameters(kind, spec["name"]):
        if name in spec or _is_kept(kind, name, default):
            filled[name] = default
    arguments = {key: value for key, value in spec.items() if key != "name"}
    spec = spec | registry.rewrite_nested(kind, spec["name"], arguments, _nested_with_defaults)
    filled |= spec
    # A stranger's default may break the stranger's annotation.
    return spec if any(_component_problems(kind, (), filled)) else filled


def _nested_with_defaults(_: Keys, spec: nested.Spec) -> dict[str, Any]:
    """Return a nested component as a map with its full name and its defaults."""
    kind = cast("Kind", spec.kind)
    return _with_defaults(kind, {"name": registry.full_name(kind, spec.name), **spec.arguments})


def _is_kept(kind: Kind, name: str, default: object) -> bool:
    """Return whether a default goes into the saved config."""
    return type(default) in (bool, int, float, str) and name not in registry.supplied(kind)


def _defaults_in_source(kind: Kind, name: str) -> dict[str, Any] | None:
    """Return the defaults that :func:`_with_defaults` fills in, if the source shows them."""
    try:
        known = registry_source.defaults(registry.component(kind, name).target)
    except UserError:
        return None
    return known and {k: v for k, v in known.items() if _is_kept(kind, k, v)}


def _may_be_nested(kind: Kind, spec: dict[str, Any]) -> bool:
    """Return whether an argument may name a component, whose defaults would be filled in too."""
    plain = registry_source.takes_plain_data(registry.component(kind, spec["name"]).target)
    return any(
        isinstance(value, str | list | Mapping) and not schedules.is_schedule(value)
        for key, value in spec.items()
        if key != "name" and key not in plain
    )


def _component_problems(kind: Kind, keys: Keys, spec: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the registry's problems with a component, worded for a config."""
    arguments = {
        key: value for key, value in spec.items() if key not in {"name", *set_by_run(kind)}
    }
    for inner, message in _argument_problems(kind, spec["name"], arguments):
        yield (*keys, *inner), message
    for argument in spec:
        if argument in set_by_run(kind):
            yield (*keys, argument), SET_BY_RUN


def _argument_problems(
    kind: Kind, name: str, arguments: dict[str, Any]
) -> Iterator[tuple[Keys, str]]:
    """Yield the problems with arguments, and with all the values that a schedule gives them."""
    if kind not in SCHEDULED or not schedules.has_schedules(arguments):
        for argument, message in registry.problems(kind, name, arguments):
            yield keys_of(argument or "name"), message
        return
    found = list(schedules.faults(arguments))
    yield from found
    if found:
        return
    told = set()
    for share in schedules.moments(arguments):
        for argument, message in registry.problems(
            kind, name, schedules.arguments_at(arguments, share)
        ):
            if argument not in told:
                told.add(argument)
                yield keys_of(argument or "name"), message


def _untrainable(data: dict[str, Any], sound: set[Keys]) -> Iterator[tuple[Keys, str]]:
    """Yield why a loss or a miner of pytorch-metric-learning cannot be trained with."""
    loss, miner = (data.get(key) if (key,) in sound else None for key in ("loss", "miner"))
    loss, miner = (spec and schedules.arguments_at(spec, 0.0) for spec in (loss, miner))
    names = [spec["name"] for spec in (loss, miner) if isinstance(spec, dict)]
    if not dig(data, ("train", "iterations")) or not any(n.startswith("pml.") for n in names):
        return
    from zoo.registry import rehearsal  # imports torch, which such a component imports anyway

    size = dig(data, ("model", "embedding_size"), 512)
    known = size if type(size) is int and 1 < size <= 2**13 else None
    yield from rehearsal.faults(loss, miner, known)


def _pointless_miner(data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield a problem if the loss ignores the pairs of a miner."""
    name = dig(data, ("loss", "name"))
    if dig(data, ("miner", "name")) is None or not isinstance(name, str):
        return
    try:
        mined = getattr(registry.load("losses", name), "mined", None)
    except UserError:
        return
    if mined is False:
        message = f"{name} looks at whole batches, not at mined pairs; set miner=null"
        yield ("miner",), message


def _other_space(data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield a problem if the loss works only in spaces of which the network has none."""
    name, space = dig(data, ("loss", "name")), dig(data, ("model", "space", "name"))
    if not isinstance(name, str) or not dig(data, ("train", "iterations")):
        return
    try:
        wanted = getattr(registry.load("losses", name), "spaces", ())
    except UserError:
        return
    if not isinstance(wanted, tuple | list) or not all(isinstance(one, str) for one in wanted):
        message = f"{name} declares spaces = {wanted!r:.60}; it must be a tuple of their names"
        yield ("loss",), message
    elif wanted and space not in wanted:
        message = f"{name} compares images in another space; set model.space={' or '.join(wanted)}"
        yield ("model", "space"), message


def _error(problems: list[Problem]) -> UserError:
    lines = [_line(problem) for problem in sorted(problems, key=_rank)]
    if len(lines) > _MAX_REPORTED:
        lines[_MAX_REPORTED:] = [f"and {len(lines) - _MAX_REPORTED:,} more"]
    return UserError("\n".join(lines))


def _line(problem: Problem) -> str:
    """Return a problem as one line; text from the file cannot control a terminal."""
    dotted = _dotted(problem.keys)
    setting = str(problem.place).removeprefix(f"{COMMAND_LINE}: ").removeprefix("--sweep ")
    if setting.startswith(f"{dotted}="):
        dotted = ""
    text = ": ".join(filter(None, (str(problem.place), dotted, problem.message)))
    return printable(text)


def _rank(problem: Problem) -> tuple[bool, Place]:
    return problem.place.file.startswith(COMMAND_LINE), problem.place


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys))
