"""The command. Exit status: 0 done, 2 the input was wrong, 1 anything else, such as a full disk."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import rich_click as click

from zoo import __version__
from zoo.cli.check import check
from zoo.cli.compare import compare
from zoo.cli.config import config_
from zoo.cli.data import data
from zoo.cli.embed import embed
from zoo.cli.evaluate import evaluate
from zoo.cli.export import export
from zoo.cli.leaderboard import leaderboard
from zoo.cli.listing.commands import list_, show
from zoo.cli.many.run import run
from zoo.cli.many.tune import tune
from zoo.cli.measure import measure
from zoo.cli.messages import complain
from zoo.cli.report import plot, report
from zoo.cli.search import index, search
from zoo.errors import MachineError, UserError, out_of_memory
from zoo.progress import mend_size
from zoo.support.files import is_wrong_name
from zoo.support.text import harmless

_TRAIN = (run, tune, check, config_, list_, show, data)
_RESULTS = (leaderboard, compare, measure, report, plot)
_USE = (embed, evaluate, index, search, export)


class _App(click.RichGroup):
    """The command group; what its usage errors quote cannot steer the terminal."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _harmless_usage():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _harmless_usage():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("stopped", "")  # click would print two lines
            ctx.exit(1)


@contextmanager
def _harmless_usage() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = harmless(error.message)
        raise


@click.group(
    cls=_App, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="metric-zoo %(version)s")
@click.rich_config({"text_markup": "rich", "text_paragraph_linebreaks": "\n\n"})
def app() -> None:
    """Compare, reproduce, write, check and use losses for deep metric learning."""


for _command in (*_TRAIN, *_RESULTS, *_USE):
    app.add_command(_command)


def main() -> None:
    """Run the command; report wrong input in one line, without a traceback."""
    _prepare_streams()
    mend_size()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _Warnings()
            try:
                app(prog_name="zoo")  # also when started by python -m zoo
            finally:
                sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - Python would print a traceback
        sys.exit(_explain(error))


def _explain(error: Exception) -> int:
    """Print what ended the command, with a traceback if it is a bug; return the exit status."""
    message = _message(error)
    if message is None or os.environ.get("ZOO_TRACEBACK"):
        complain("".join(traceback.format_exception(error)), "")
    if message is not None:
        complain(message)
    if isinstance(error, OSError) and error.filename is None:
        sys.stdout = _nowhere()  # Python would try to write the rest at exit and fail again
    return 2 if _is_wrong_input(error) else 1


def _is_wrong_input(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.filename is not None and is_wrong_name(error)
    return isinstance(error, UserError) and not isinstance(error, MachineError)


def _message(error: Exception) -> str | None:
    """Return the message that is printed instead of a traceback; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    full = out_of_memory(error)
    if full is None and isinstance(error, OSError):
        if error.filename is None:
            return f"the output cannot be written: {error.strerror}"
        return f"{str(error.filename)!r}: {error.strerror or error}"
    return full


def _prepare_streams() -> None:
    """Make sure that both streams exist and that every character can be printed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as in ``zoo list >&-``
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


class _Warnings:
    """Shows each warning once, as one line without its place in the code."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        if os.environ.get("ZOO_TRACEBACK"):
            text += f" ({filename}:{lineno}: {category.__name__})"
        if text not in self._shown:
            self._shown.add(text)
            complain(text, "warning: ")
