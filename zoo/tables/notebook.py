"""How results show themselves: as text, as HTML in a notebook, as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from zoo.errors import UserError
from zoo.support.text import printable

if TYPE_CHECKING:
    import pandas

    from zoo.tables.table import Table

_T = TypeVar("_T", bound="Shown")


class Shown:
    """Base of what is shown as tables; ``_as_tables`` returns them."""

    def _as_tables(self) -> Sequence[Table]:
        raise NotImplementedError

    def __repr__(self) -> str:
        from zoo.tables import leaderboard

        return leaderboard.render(self._as_tables(), "text").rstrip("\n")

    def _repr_html_(self) -> str | None:
        from zoo.tables.formats import html

        return html.fragment(self._as_tables())

    def to_pandas(self) -> pandas.DataFrame:
        """Return all numbers as a data frame, in the columns of the CSV format.

        There is a row for each experiment, data set and measure. A mean is a percentage, as in
        tables, and not rounded.

        Raises:
            UserError: pandas is not installed.
        """
        from zoo.tables.formats import csv

        try:
            import pandas
        except ImportError as error:
            message = "to_pandas needs pandas, which is not installed: pip install pandas"
            raise UserError(message) from error
        rows = [row for table in self._as_tables() for row in csv.rows(table)]
        return pandas.DataFrame(rows, columns=list(csv.COLUMNS))


class Shelf(Shown, list[_T]):
    """A list whose items are shown as tables."""

    def _as_tables(self) -> Sequence[Table]:
        return [table for one in self for table in one._as_tables()]


class RunResult(Shown, dict[str, Any]):
    """The content of ``result.json``, shown as its row of the leaderboard."""

    def _as_tables(self) -> Sequence[Table]:
        from zoo.tables import leaderboard

        return leaderboard.tables([dict(self)])

    @property
    def _is_tested(self) -> bool:
        return "recall" in self

    def __repr__(self) -> str:
        return f"run {self._name}\n{super().__repr__()}" if self._is_tested else self._waiting()

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self._is_tested else None

    @property
    def _name(self) -> str:
        return printable(str(self.get("run")))

    def _waiting(self) -> str:
        """Return the results on held-out classes of a run that has not been tested."""
        recall = self["validation"]["recall"]
        scores = "  ".join(f"R@{k} {100 * recall[k]:.2f}" for k in recall)
        return f"run {self._name}: validation {scores}; the test classes are not measured"
