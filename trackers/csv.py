"""A table of the numbers of a run, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from zoo.support.files import read_text, replace_file


class CSVTracker:
    """Write the numbers of a run to a CSV file, a row for each iteration.

    Each number has a column; a cell is empty where it was not measured. The file is rewritten whole
    each time, so it can be read at any moment.

    Args:
        file: the file; a relative path starts at the run's folder.
        run_folder: supplied by the run.
    """

    def __init__(self, run_folder: Path, file: str = "metrics.csv") -> None:
        self._path = Path(run_folder) / Path(file).expanduser()
        self._rows: dict[int, dict[str, str]] = {}

    def begin(self, iteration: int) -> None:
        """Keep the rows of a stopped run up to the iteration from which it goes on."""
        if not iteration or not self._path.exists():
            return
        for row in csv.DictReader(io.StringIO(read_text(self._path))):
            if int(row["iteration"]) <= iteration:
                self._rows[int(row.pop("iteration"))] = {k: v for k, v in row.items() if v}

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add numbers to the row of an iteration."""
        row = self._rows.setdefault(iteration, {})
        row.update({name: repr(float(value)) for name, value in values.items()})
        names = dict.fromkeys(name for row in self._rows.values() for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, ["iteration", *names], lineterminator="\n")
        writer.writeheader()
        for number, cells in self._rows.items():
            writer.writerow({"iteration": number, **cells})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, lambda stream: stream.write(text.getvalue().encode()))

    def end(self, finished: bool) -> None:
        """Do nothing: the file is complete after each number."""
