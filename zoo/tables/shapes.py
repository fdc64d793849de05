"""The shape of a published table, read from a file: its rows, its columns and its numbers."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zoo.config.schema import numbers_alike
from zoo.errors import UserError, did_you_mean
from zoo.support import yaml
from zoo.support.text import printable
from zoo.support.values import as_setting
from zoo.tables import conditions

_Setting = str | int | float | bool | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Protocol(_Part):
    """How the paper measured."""

    said: str = Field(description="in words")
    settings: dict[str, _Setting] = Field(description="the settings of it that a run may lack")

    def unlike(self, result: Mapping[str, Any]) -> str | None:
        """Return what keeps a run from being comparable with the paper's numbers."""
        found = {path: conditions.value(result, path) for path in self.settings}
        other = [
            f"{path}={as_setting(found[path])} instead of {as_setting(value)}"
            for path, value in self.settings.items()
            if found[path] != value and (result.get("settings") or path == "model.backbone")
        ]
        return f"not measured as the paper's values: {', '.join(other)}" if other else None


class Columns(_Part):
    """The columns of a data set."""

    name: str = Field(description="the data set, as `zoo list datasets` has it")
    title: str = Field(description="what the table calls it")
    ks: list[int] = Field(min_length=1, description="the K of its columns")


class ShapeRow(_Part):
    """A row."""

    title: str = Field(description="what the table calls it")
    name: str = Field(default="", description="what configs call it in paper.row; like the title")
    match: dict[str, _Setting] = Field(
        default={}, description="settings of the runs that are in it, if they do not name a row"
    )
    recall: dict[str, list[float | None]] = Field(
        default={}, description="what the paper reports, by data set, in the order of its columns"
    )

    @property
    def key(self) -> str:
        """The name by which runs are in it."""
        return self.name or self.title


class Block(_Part):
    """Rows that stand together."""

    best: bool = Field(description="whether its best numbers are bold")
    rows: list[ShapeRow] = Field(min_length=1, description="its rows")


class TableShape(_Part):
    """A table of a paper."""

    paper: str = Field(description="the table, as configs call it in paper.table")
    caption: str = Field(description="what is in it")
    head: str = Field(description="what stands above the titles of the rows")
    digits: int = Field(ge=0, le=6, description="decimals of its numbers")
    protocol: Protocol = Field(description="how the paper measured")
    datasets: list[Columns] = Field(min_length=1, description="its columns")
    blocks: list[Block] = Field(min_length=1, description="its rows")
    key: str = Field(
        default="",
        description="what a run's row is called by its settings, such as s={loss.scale}; products "
        "as {a*b}",
    )
    where: dict[str, _Setting] = Field(
        default={}, description="with `key`: settings of all runs that are in it"
    )
    fixed: dict[str, _Setting] = Field(
        default={}, description="with `key`: the same, on the data sets of the paper"
    )

    @property
    def varied(self) -> list[str]:
        """The settings that the table is about."""
        return [path for field in _fields(self.key) for path in field]

    @property
    def rows(self) -> list[ShapeRow]:
        """The rows of all blocks."""
        return [row for block in self.blocks for row in block.rows]

    def row_of(self, result: Mapping[str, Any]) -> str | None:
        """Return the key of the row that a run is in by its settings; None if it is in none."""
        if self.key:
            return self._by_settings(result)
        fitting = [row for row in self.rows if row.match and _fits(result, row.match)]
        return max(fitting, key=lambda row: len(row.match)).key if fitting else None

    def _by_settings(self, result: Mapping[str, Any]) -> str | None:
        own = result["dataset"]["name"] in {columns.name for columns in self.datasets}
        values = [[conditions.value(result, path) for path in f] for f in _fields(self.key)]
        if not _fits(result, self.where | (self.fixed if own else {})):
            return None
        if any(value is None for factors in values for value in factors):
            return None
        told = iter(values)
        return re.sub(r"\{.*?\}", lambda _: _product(next(told)), self.key)


def load(name: str) -> TableShape:
    """Return a shape that ships with the zoo, by its name, or one in a file of the user's.

    Raises:
        UserError: if there is no such shape, or the file is none.
    """
    shipped = _library()
    path = shipped.get(name, Path(name))
    if name not in shipped and path.suffix not in (".yaml", ".yml"):
        hint = did_you_mean(name, ["runs", *shipped])
        there = f"there are runs, {', '.join(shipped)}, or name a YAML file"
        raise UserError(f"there is no shape {name!r}{hint or '; ' + there}")
    problems: list[yaml.Problem] = []
    node = yaml.read(path, name, problems)
    if node is None:
        raise UserError(printable(f"{name}: {problems[0].message}"))
    try:
        return TableShape.model_validate(numbers_alike(node.plain()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:60] or "all of it"
        message = f"{name}: not the shape of a table: {where}: {first['msg']}"
        raise UserError(printable(message)) from error


def protocols() -> dict[str, Protocol]:
    """Return how the paper measured, by table."""
    return {shape.paper: shape.protocol for shape in map(load, _library())}


def _library() -> dict[str, Path]:
    folder = Path(importlib.import_module("zoo.configs").__path__[0]) / "tables"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _fits(result: Mapping[str, Any], wanted: Mapping[str, _Setting]) -> bool:
    return all(conditions.value(result, path) == value for path, value in wanted.items())


def _fields(template: str) -> Iterator[list[str]]:
    """Yield the settings that each field of a template has, one or the factors of a product."""
    for field in re.findall(r"\{(.*?)\}", template):
        yield [path.strip() for path in field.split("*")]


def _product(factors: list[Any]) -> str:
    if len(factors) > 1 and all(isinstance(factor, int | float) for factor in factors):
        return as_setting(math.prod(factors))
    return "*".join(map(as_setting, factors))
