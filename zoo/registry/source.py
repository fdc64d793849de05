"""Facts about a class, read from its source without importing it, which may import torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
import textwrap
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from zoo.support.files import MOST_TEXT, read_bytes

# A name in backticks; text in bold or italics.
_MARKED = re.compile(r"`([^`]+)`_{0,2}|(?<![\w*])(\*\*?)(?=\S)(.+?)(?<=\S)\2(?![\w*])")
_BULLET = re.compile(r" *(?:[*+-]|\d+\.) ")
_ARGUMENT = re.compile(r" +\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*: ")  # and, behind it, what it is
_PLAIN_TYPES = {"bool", "int", "float", "str", "list", "tuple", "dict", "Literal"}
_UNCLEAR = (SyntaxError, ValueError, OSError, ImportError, RecursionError)
_FULL = 60  # characters; a shorter line that has room for the next word was ended on purpose
_NO_SENTENCE = re.compile(r"^(?:[\w #]*:|[-=*#].*|\W*|\w+://\S*)$")


class Text(NamedTuple):
    """What the source of a class shows, including what is visibly wrong with its module."""

    summary: str = ""  # first line of the docstring
    facts: Mapping[str, str] = MappingProxyType({})  # text attributes, such as ``paper``
    arguments: tuple[str, ...] = ()  # of its own constructor
    broken: str | None = None  # why it cannot be used


def read(target: str) -> Text:
    """Return what the source of ``"module:Class"`` shows; never raises, never imports it.

    It is reported as broken if the module does not exist, does not parse or does not define the
    class, imports something unconditionally that is not installed, or has a ``raise`` at its top
    level. Other failures show when the component is used.
    """
    module, _, name = target.partition(":")
    path = _find_source(module)
    if path is None:
        return Text(broken=f"there is no module {module}")
    try:
        tree = _parsed(path)
    except (SyntaxError, ValueError, OSError) as error:
        return Text(broken=f"{type(error).__name__}: {error}")
    broken = _import_problem(tree) or (None if name else no_class(module))
    if broken:
        return Text(broken=broken)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name.split(".")[0]:
            summary = summary_of(ast.get_docstring(node) or "", name)
            return Text(summary, _text_attributes(node), _constructor_arguments(node))
    if _may_define(tree, name.split(".")[0]):
        return Text()
    return Text(broken=f"{module} does not define {name}")


def summary_of(documentation: str, name: str) -> str:
    """Return the first sentence of a docstring, or the name of its class if it has none.

    Sections such as ``Args:``, marks such as ``Issue #411:``, rules, list items and addresses are
    skipped.
    """
    for paragraph in re.split(r"\n\s*\n", documentation.strip()):
        lines = paragraph.split("\n")
        while lines and _NO_SENTENCE.match(lines[0].strip()):
            section = len(lines) > 1 and lines[1].startswith(" ")
            lines = [] if section else lines[1:]
        if lines:
            return _sentence([line.strip() for line in lines])
    return name


def _sentence(lines: list[str]) -> str:
    """Return the first line, and the next ones if its sentence continues there."""
    first, *others = lines
    while others and others[0][:1].islower() and not re.search(r"[.:;!?]$|//\S*$", first):
        first += " " + others.pop(0)
    return first


def no_class(module: str) -> str:
    """Return the message for an entry point that names only a module."""
    return f"its entry point names a module, not a class; it should be {module}:<Class>"


def defaults(target: str) -> dict[str, object] | None:
    """Return the arguments of a class that have a default; None if the source does not show them.

    It does not if a constructor passes arguments on, or if a default is computed.
    """
    module, _, name = target.partition(":")
    try:
        module, arguments = _constructor(module, name)
        if arguments.kwarg or arguments.vararg:
            return None
        positional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        given = [*zip(positional, arguments.defaults, strict=True)]
        given += [
            (argument, value)
            for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        ]
        return {argument.arg: _constant(module, value) for argument, value in given}
    except _UNCLEAR:
        return None


def takes_plain_data(target: str) -> frozenset[str]:
    """Return the arguments of a class that are no components: their types are numbers, text, lists.

    Raises nothing: an argument whose type the source does not show is not among them.
    """
    module, _, name = target.partition(":")
    try:
        module, arguments = _constructor(module, name)
    except _UNCLEAR:
        return frozenset()
    every = [*arguments.args, *arguments.kwonlyargs]
    return frozenset(a.arg for a in every if a.annotation and _is_plain_type(module, a.annotation))


def _is_plain_type(module: str, annotation: ast.AST) -> bool:
    """Return whether a type consists of plain ones, named here or where it is imported from."""
    nodes = list(ast.walk(annotation))
    if any(isinstance(node, ast.Attribute) for node in nodes):
        return False
    named = {node.id for node in nodes if isinstance(node, ast.Name)} - _PLAIN_TYPES
    try:
        return all(_is_plain_type(*_definition(module, name)) for name in named)
    except _UNCLEAR:
        return False


def plain(text: str) -> str:
    """Return a docstring without its markup of names: roles and double backticks."""
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")


def unmarked(text: str) -> str:
    """Return a docstring without any markup: of names, bold text and italics."""
    return _MARKED.sub(lambda found: found[1] or found[3], plain(text))


def filled(text: str, width: int) -> str:
    """Return a docstring without markup, its paragraphs filled to a width; formulas stay whole."""
    done: list[str] = []
    paragraph: list[str] = []
    above = -1  # the indent of the line that announces a block of formulas
    for line in [*text.split("\n"), ""]:
        if above >= 0 and (not line or _indent(line) > above):
            done.append(line)
            continue
        above = _indent(line) if line.endswith("::") else -1
        if paragraph and not _continues(paragraph, line):
            done.append(_fill(paragraph, width))
            paragraph = []
        if line:
            paragraph.append(line)
        else:
            done.append("")
        if above >= 0:
            done.append(_fill(paragraph, width))
            paragraph = []
    return "\n".join(done).rstrip()


def _continues(paragraph: list[str], line: str) -> bool:
    """Return whether a line is the next one of a paragraph, not a new one or an item of a list."""
    last, indent = paragraph[-1], _indent(line)
    if not line or _BULLET.match(line) or _ARGUMENT.match(line):
        return False
    hangs = len(paragraph) == 1 and indent > _indent(last) and not last.endswith(":")
    return (hangs or indent == _indent(last)) and len(last) + len(line.split()[0]) >= _FULL


def _fill(paragraph: list[str], width: int) -> str:
    first = paragraph[0]
    hang = 2 if _BULLET.match(first) else 4 if _ARGUMENT.match(first) else 0
    return textwrap.fill(
        re.sub("::$", ":", unmarked(" ".join(map(str.strip, paragraph)))),
        width,
        initial_indent=" " * _indent(first),
        subsequent_indent=" " * (_indent(first) + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def find_spec(module: str) -> ModuleSpec | None:
    """Return the spec of a module without importing its parents."""
    locations = None
    spec = None
    parts = module.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[: i + 1])
        spec = _find_one(name, locations)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
    return spec


def _find_one(name: str, locations: object) -> ModuleSpec | None:
    if name in sys.modules:
        return sys.modules[name].__spec__
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, locations)  # type: ignore[arg-type]
        except (AttributeError, ImportError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


def _find_source(module: str) -> Path | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    return Path(spec.origin)


def _parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which is parsed again if it has changed."""
    there = path.stat()
    return _tree(path, there.st_mtime_ns, there.st_size)


@functools.lru_cache(maxsize=256)  # more than there are losses, all of which `zoo show` reads
def _tree(path: Path, changed: int, size: int) -> ast.Module:
    return ast.parse(read_bytes(path, MOST_TEXT))


def _definition(module: str, name: str) -> tuple[str, ast.AST]:
    """Return a name's only definition, following imports, and its module; or raise a ValueError."""
    path = _find_source(module)
    found: list[tuple[str, ast.AST]] = []
    for node in _parsed(path).body if path else []:
        if isinstance(node, ast.ClassDef) and node.name == name and not node.decorator_list:
            found.append((module, node))
        elif isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            found.append((module, node.value))
        elif isinstance(node, ast.ImportFrom):
            package = module.rpartition(".")[0]
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
            found += [_definition(source, original) for original in names]
    (definition,) = found
    return definition


def _constructor(module: str, name: str) -> tuple[str, ast.arguments]:
    """Return the arguments of a class's constructor, and the module that defines it."""
    module, node = _definition(module, name)
    if not isinstance(node, ast.ClassDef):
        raise ValueError(f"{name} is not a class")
    own = [item for item in node.body if getattr(item, "name", None) == "__init__"]
    if not own:
        (base,) = node.bases  # with several, it is not obvious which one defines it
        return _constructor(module, ast.unparse(base))
    (init,) = own
    if not isinstance(init, ast.FunctionDef) or init.decorator_list:
        raise ValueError(f"{name} has no plain constructor")
    return module, init.args


def _constant(module: str, node: ast.AST) -> object:
    """Return the value of a literal, or of a name that stands for one."""
    if isinstance(node, ast.Name):
        return _constant(*_definition(module, node.id))
    value: object = ast.literal_eval(node)
    return value


def _import_problem(tree: ast.Module) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.Raise):
            return f"importing it fails: {ast.unparse(node)}"
        roots = []
        if isinstance(node, ast.Import):
            roots = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots = [node.module.split(".")[0]]
        for root in roots:
            if root not in sys.modules and importlib.util.find_spec(root) is None:
                return f"No module named {root!r}"
    return None


def _text_attributes(node: ast.AST) -> dict[str, str]:
    """Return the attributes in the body of a class that are plain text."""
    found: dict[str, str] = {}
    for item in getattr(node, "body", []):
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        value = getattr(item, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found |= {t.id: value.value for t in targets if isinstance(t, ast.Name)}
    return found


def _constructor_arguments(node: ast.AST) -> tuple[str, ...]:
    for item in getattr(node, "body", []):
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return tuple(a.arg for a in [*item.args.args[1:], *item.args.kwonlyargs])
    return ()


def _may_define(tree: ast.Module, name: str) -> bool:
    """Return whether a module may import or compute a name that it does not define as a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = {node.name}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = {node.id}
        else:
            continue
        if names & {name, "*", "__getattr__"}:
            return True
    return False
