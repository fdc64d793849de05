"""Reading and writing YAML: plain data with the scalars of YAML 1.2, and the place of every value.

PyYAML follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and ``12:30`` is 750. Here a number
is a number, and only true and false are booleans. Files are not trusted: tags construct no objects,
and aliases cannot expand without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Key = str | int
Keys = tuple[Key, ...]

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
MAX_DEPTH = 50
_MAX_DIGITS = 1000  # of a number; Python refuses to print more than 4,300

_INDEX = re.compile("^[0-9]+$")
_PREFIX = "tag:yaml.org,2002:"
# The core schema of YAML 1.2: kind, pattern, and the possible first characters of such a scalar.
_CORE = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
)


class Place(NamedTuple):
    """Where something was written: ``file:line:column``, as far as known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part)


class Problem(NamedTuple):
    """What is wrong with the value at ``keys``, and where it was written."""

    place: Place
    keys: Keys
    message: str


@dataclass(frozen=True)
class Node:
    """A value and its place; the place of a map's entry is that of its key."""

    value: Any  # a scalar, a list of nodes, or a dict of nodes
    place: Place

    def plain(self) -> Any:
        """Return the value as plain data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def nearest(self, keys: Iterable[Key]) -> Place:
        """Return the place of the value at ``keys``, or of the map or list that should hold it."""
        node = self
        for key in keys:
            if isinstance(node.value, dict) and key in node.value:
                node = node.value[key]
            elif isinstance(node.value, list) and key in range(len(node.value)):
                node = node.value[int(key)]
            else:
                break
        return node.place


def read(path: Path, file: str, problems: list[Problem], *, pipe: bool = False) -> Node | None:
    """Read a file, named ``file`` in messages; add a problem and return None if that fails.

    A ``pipe`` is read until its writer closes it.
    """
    from zoo.support.files import open_regular  # which needs this module

    try:
        with path.open("rb") if pipe and path.is_fifo() else open_regular(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            problems.append(Problem(Place(file), (), "is larger than 1 MB: not a config"))
            return None
        return parse(raw.decode("utf-8-sig"), file, problems)
    except OSError as error:
        problems.append(Problem(Place(file), (), f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        place = Place(file, error.object.count(b"\n", 0, error.start) + 1)
        problems.append(Problem(place, (), "is not UTF-8 text"))
    return None


def parse(
    text: str, file: str, problems: list[Problem], place: Place | None = None, keys: Keys = ()
) -> Node | None:
    """Parse a text; add a problem and return None if that fails.

    Problems are at ``keys`` of the config, and at ``place`` if the lines of the text do not count.
    """
    try:
        root = yaml.compose(text, _Loader)
        if root is None:
            return Node(None, place or Place(file))
        return _Converter(file, problems, place).convert(root, keys, place)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        said = error.problem or error.context or ""
        message = said if isinstance(error, _Refused) else f"not valid YAML: {said}"
    except yaml.reader.ReaderError as error:
        at = Place(file, text.count("\n", 0, error.position) + 1)
        message = f"not valid YAML: the character {chr(int(error.character))!r} is not allowed"
    except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF"
        at, message = Place(file), f"not valid YAML: {error}"
    problems.append(Problem(place or at, keys, message))
    return None


def dump(data: Any) -> str:
    """Write plain data so that readers of YAML 1.1 and of 1.2 get the same data back."""
    return _write(data, flow=None, width=100)


def kind_of(text: str) -> str:
    """Return the type of an unquoted scalar: null, bool, int, float or str."""
    return next((kind for kind, pattern, _ in _CORE if pattern.match(text)), "str")


def inline(value: Any) -> str:
    """Write plain data on one line, as in a setting on the command line."""
    return _write(value, flow=True, width=1e9).removesuffix("\n").removesuffix("\n...")


def _write(data: Any, flow: bool | None, width: float) -> str:
    text: str = ""
    for unescaped in (True, False):  # text that could control a terminal is escaped
        text = yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=unescaped,
            default_flow_style=flow,
            width=width,
        )
        if text.replace("\n", "").isprintable():
            break
    return text


def keys_of(dotted: str) -> Keys:
    """Return the keys that ``evaluate.ks.0`` names."""
    parts = dotted.strip().split(".")
    return tuple(int(p) if len(p) <= _MAX_DIGITS and _INDEX.match(p) else p for p in parts)


def nest(keys: Keys, node: Node) -> Node:
    """Return nested maps that have a value at ``keys``, all with the place of the value."""
    for key in reversed(keys):
        node = Node({key: node}, node.place)
    return node


def merge(base: Node, over: Node, keys: Keys = ()) -> Node:
    """Lay one tree over another: maps merge, everything else is replaced.

    A map with another ``name`` is another component, for which the inherited arguments mean
    nothing: it replaces the map below it. Only the whole config may change its name and inherit.
    Text stands for a map with that name; a map with numbers as keys changes items of a list.
    """
    base, over = spelled_out(base, over), spelled_out(over, base)
    if _fits(over, base):
        items = dict(enumerate(base.value)) | {
            i: merge(base.value[i], node, (*keys, i)) for i, node in over.value.items()
        }
        return Node(list(items.values()), base.place)
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    if keys and _name(over) not in (None, _name(base)) and _name(base) is not None:
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        merged[key] = merge(merged[key], node, (*keys, key)) if key in merged else node
    return Node(merged, base.place)


def spelled_out(node: Node, beside: Node) -> Node:
    """Return a component's name as a map with that name, if ``beside`` is written as a map."""
    if isinstance(node.value, str) and isinstance(beside.value, dict):
        return Node({"name": node}, node.place)
    return node


def _fits(over: Node, base: Node) -> bool:
    """Return whether the keys of a map are positions in a list."""
    if not isinstance(over.value, dict) or not isinstance(base.value, list) or not over.value:
        return False
    return all(key in range(len(base.value)) for key in over.value)


def _name(node: Node) -> object:
    name = node.value.get("name")
    return None if name is None else name.value


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """Composes a file into PyYAML's nodes; stops early if they are too many or too deep."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - without those of YAML 1.1

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._count = 0
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._count += 1
        self._depth += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]
        _limit(self._count, self._depth, event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:
        node = super().represent_mapping(tag, mapping, flow_style)
        if len(node.value) > 6:  # too many for one line
            node.flow_style = False
        return node


for _kind, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(_PREFIX + _kind, _pattern, _first)
    _Dumper.add_implicit_resolver(_PREFIX + _kind, _pattern, _first)


def _limit(count: int, depth: int, mark: Any) -> None:
    if count > MAX_VALUES:
        raise _Refused(f"more than {MAX_VALUES:,} values: not a config", mark)
    if depth > MAX_DEPTH:
        raise _Refused(f"nested more than {MAX_DEPTH} deep", mark)


class _Converter:
    """Turns PyYAML's nodes, which aliases may share or make circular, into a finite tree."""

    def __init__(self, file: str, problems: list[Problem], place: Place | None) -> None:
        self._file = file
        self._problems = problems
        self._place = place
        self._count = 0
        self._open: set[yaml.Node] = set()

    def convert(self, node: yaml.Node, keys: Keys, place: Place | None = None) -> Node:
        """Return the tree of a node; ``place`` is that of its key."""
        self._count += 1
        if node in self._open:
            raise _Refused("an alias to something that contains it", node.start_mark)
        _limit(self._count, len(self._open) + 1, node.start_mark)
        self._open.add(node)
        value = self._value(node, keys)
        self._open.remove(node)
        return Node(value, place or self._where(node))

    def _value(self, node: yaml.Node, keys: Keys) -> Any:
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, keys, "map")
            return self._map(node, keys)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, keys, "seq")
            return [self.convert(item, (*keys, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, keys)

    def _map(self, node: yaml.MappingNode, keys: Keys) -> dict[Key, Node]:
        found: dict[Key, Node] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, keys)
            if key is None:
                continue
            entry = self.convert(value_node, (*keys, key), self._where(key_node))
            if key in found:
                first = found[key].place
                where = f"; first on line {first.line}" if first.line else ""
                self._report(key_node, (*keys, key), f"given twice{where}")
            found[key] = entry
        return found

    def _key(self, node: yaml.Node, keys: Keys) -> Key | None:
        """Return a key: text, or a whole number such as the K of a Recall@K."""
        if isinstance(node, yaml.ScalarNode):
            key = self._scalar(node, keys)
            if key == "<<":
                self._report(node, keys, "merge keys (<<) are not YAML 1.2; use `extends`")
                return None
            if isinstance(key, str) or type(key) is int:
                return key
            self._report(node, keys, f"the key {node.value!r} is not text; put it in quotes")
        else:
            self._report(node, keys, "a key must be text, not a list or a map")
        return None

    def _scalar(self, node: yaml.Node, keys: Keys) -> Any:
        text: str = node.value
        kind = self._check_tag(node, keys, "str", kind_of(text))
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._report(node, keys, f"{text[:20]!r} is not text: it has half a character")
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind in ("int", "float") and len(text) > _MAX_DIGITS:
            self._report(node, keys, f"the number {text[:20]}... is too long")
            return text
        if kind == "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if kind == "float":
            special = text.lower().endswith((".inf", ".nan"))
            return float(text.replace(".", "") if special else text)
        return text

    def _check_tag(self, node: yaml.Node, keys: Keys, *accepted: str) -> str:
        """Return the type that a node's tag, written or implied, stands for.

        A tag that is not accepted is reported, and treated as the first accepted one.
        """
        kind = node.tag.removeprefix(_PREFIX)
        if kind in accepted:
            return kind
        tag = node.tag.replace(_PREFIX, "!!")
        self._report(node, keys, f"the tag {tag} is not accepted here; configs are plain YAML")
        return accepted[0]

    def _where(self, node: yaml.Node) -> Place:
        return self._place or Place(self._file, node.start_mark.line + 1)

    def _report(self, node: yaml.Node, keys: Keys, message: str) -> None:
        self._problems.append(Problem(self._where(node), keys, message))
