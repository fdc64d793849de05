"""The command. Exit status: 0 done, 2 the input was wrong, 1 anything else, as a full disk."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import rich_click as click
from click.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from zoo import (
    __version__,
    _cli_compare,
    _cli_data,
    _cli_leaderboard,
    _cli_measure,
    _cli_report,
    _cli_use,
    registry,
)
from zoo._arguments import REQUIRED
from zoo._files import is_wrong_name
from zoo._words import harmless
from zoo.errors import MachineError, UserError, did_you_mean, one_of, out_of_memory
from zoo.progress import Reporter, echo, mend_size, stderr, stdout

if TYPE_CHECKING:
    from zoo.checks import Report
    from zoo.jobs import Plan
    from zoo.schema import Config


_TOO_LONG = re.compile(r"(\S{100})\S{4096,}(\S{100})")  # for a message; longer than any path


class _App(click.RichGroup):
    """The command; what it says of its arguments cannot steer the terminal."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _harmless_usage():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _harmless_usage():
            return super().invoke(ctx)


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


app.add_command(_cli_compare.compare)
app.add_command(_cli_data.data)
app.add_command(_cli_leaderboard.leaderboard)
app.add_command(_cli_measure.measure)
for _command in (_cli_use.embed, _cli_use.index, _cli_use.search, _cli_use.export):
    app.add_command(_command)
app.add_command(_cli_report.report)
app.add_command(_cli_report.plot)


def main() -> None:
    """Run the command; say what was wrong with the input in words, not in a traceback."""
    _prepare_streams()
    mend_size()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _Warnings()
            try:
                app(prog_name="zoo")  # however it was started
            finally:
                sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - Python would print it as it is
        sys.exit(_explain(error))


def _explain(error: Exception) -> int:
    """Say what ended the command, in words where it is not a mistake in the program.

    Returns:
        the exit status.
    """
    said = _in_words(error)
    if said is None or os.environ.get("ZOO_TRACEBACK"):
        _complain("".join(traceback.format_exception(error)), "")
    if said is not None:
        _complain(said)
    if isinstance(error, OSError) and error.filename is None:
        sys.stdout = _nowhere()  # what is left would fail at exit again
    return 2 if _is_of_the_input(error) else 1


def _is_of_the_input(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.filename is not None and is_wrong_name(error)
    return isinstance(error, UserError) and not isinstance(error, MachineError)


def _in_words(error: Exception) -> str | None:
    """Return what is said instead of a traceback."""
    if isinstance(error, UserError):
        return str(error)
    full = out_of_memory(error)
    if full is None and isinstance(error, OSError):
        if error.filename is None:
            return f"the output cannot be written: {error.strerror}"
        return f"{str(error.filename)!r}: {error.strerror or error}"  # no right, no room
    return full


def _prepare_streams() -> None:
    """Make sure that there are streams, and that no character is one too many for them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as in ``zoo list >&-``
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


class _Warnings:
    """Shows each warning once, as a line of its own that says what it says and no more."""

    def __init__(self) -> None:
        self._said: set[str] = set()

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
        if text not in self._said:
            self._said.add(text)
            _complain(text, "warning: ")


@app.command()
@click.argument(
    "arguments",
    nargs=-1,
    metavar="CONFIG|KEY=VALUE",
    help="YAML files or names of shipped configs; and settings to change, such as loss.scale=32.",
)
@click.option("--seeds", metavar="0,1,2", help="Run each with these seeds.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=VALUE,VALUE",
    help="Run each with these values; given for several keys, with every combination.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at a time; by default one on each GPU, or one on the CPU.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be run, with time and disk.")
@click.option("--restart", is_flag=True, help="Forget what the run folders hold; start anew.")
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def run(
    arguments: tuple[str, ...],
    seeds: str | None,
    sweep: tuple[str, ...],
    jobs: int | None,
    dry_run: bool,
    restart: bool,
    quiet: bool,
) -> None:
    """Train and evaluate an experiment, or many of them; ends in a leaderboard.

    Ctrl-C saves what was done; the same command goes on from there.
    A finished run is not run again: its result is shown.

    Exit status: 0 done, 1 a run was stopped or failed, 2 the input was wrong.

    Examples: [cyan]zoo run ice_glyphs[/],
    [cyan]zoo run configs/ice_glyphs.yaml loss.scale=32 seed=1[/],
    [cyan]zoo run ice_glyphs rll_glyphs --seeds 0,1,2[/],
    [cyan]zoo run ice_glyphs --sweep loss.scale=16,32,64 --dry-run[/]
    """
    try:
        _carry_out(arguments, seeds, sweep, jobs, dry_run, restart, Reporter(quiet=quiet))
    except KeyboardInterrupt as error:
        _complain(f"{str(error) or 'stopped'}; to go on: {_again()}", "")
        raise Exit(1) from None


def _carry_out(
    arguments: Sequence[str],
    seeds: str | None,
    sweep: Sequence[str],
    at_a_time: int | None,
    dry_run: bool,
    restart: bool,
    reporter: Reporter,
) -> None:
    """Run what the arguments of ``zoo run`` ask for."""
    from zoo import jobs

    configs, overrides = jobs.sort(arguments)
    alone = len(configs) == 1 and not (sweep or seeds or dry_run or restart)
    if alone and _show_finished(configs[0], overrides, reporter):
        return
    plan = jobs.make(configs, overrides, sweep, seeds)
    first, *others = plan.jobs
    if dry_run:
        stdout().print(jobs.forecast(plan, at_a_time, restart))
    elif others:
        _run_many(plan, at_a_time, restart, reporter)
    else:
        result = _run(first.config, overrides, restart, reporter)
        _show_result(first.config.output, result, reporter.quiet)


def _show_finished(source: str, overrides: list[str], reporter: Reporter) -> bool:
    """Show the result of a finished run without torch, which takes seconds to import.

    Returns:
        whether that was possible; not if it is unfinished, or if torch is needed to tell.
    """
    from zoo import config as configuration
    from zoo.results import RunFolder

    checked = configuration.guess(source, overrides)
    if checked is None:
        return False
    folder = RunFolder.of(checked)
    if not folder.finished:
        return False
    result = folder.result(checked)
    reporter.say(folder.finished_message)
    _show_result(checked.output, result, reporter.quiet)
    return True


def _show_result(output: str, result: dict[str, Any], quiet: bool) -> None:
    """Print the boards that a result is on, or its row alone."""
    from zoo import leaderboard

    console = stdout()
    for board in leaderboard.boards([result] if quiet else leaderboard.load(output)):
        if any(result["run"] == r["run"] for row in board.rows for r in row.results):
            console.print(leaderboard.to_table(board, console.width, highlight=result["run"]))


def _run(
    checked: Config, overrides: list[str], restart: bool, reporter: Reporter
) -> dict[str, Any]:
    """Run an experiment; say what ended it and how to go on, if that is not its last iteration."""
    from zoo import _signals, environment, runner
    from zoo.train import DivergedError

    environment.keep_freed_memory()
    _signals.end_as_ctrl_c_does()
    try:
        return runner.run(checked, overrides, restart=restart, reporter=reporter)
    except runner.InterruptedRunError as error:
        raise KeyboardInterrupt(str(error)) from None
    except DivergedError as error:
        _complain(str(error))
        raise Exit(1) from None


def _run_many(plan: Plan, at_a_time: int | None, restart: bool, reporter: Reporter) -> None:
    """Carry out a plan; print the leaderboard of its runs, and what did not work."""
    from zoo import _selection, jobs, leaderboard

    if restart:
        jobs.forget(plan)
    if not reporter.quiet:
        reporter.console.print(jobs.table(plan))
    outcome = jobs.run(plan, at_a_time, reporter)
    console = stdout()
    for choice in outcome.choices:
        console.print(_selection.table(choice))
        console.print()
    for board in leaderboard.boards(outcome.results):
        console.print(leaderboard.to_table(board, console.width))
    for reason, names in outcome.failures().items():
        _complain(f"{', '.join(names)}: {reason}")
    if outcome.unfinished:
        said = f"stopped: {outcome.unfinished} of {len(plan.jobs)} runs are not finished"
        _complain(f"{said}; to go on: {_again()}", "")
    if outcome.failed or outcome.unfinished:
        raise Exit(1)


def _again() -> str:
    """Return the command that goes on where this one stopped."""
    return shlex.join(["zoo", *(a for a in sys.argv[1:] if a != "--restart")])


@app.command("list")
@click.argument(
    "kind",
    required=False,
    help="losses, miners, samplers, backbones or datasets; all by default.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also every class of pytorch-metric-learning.",
)
def list_(kind: str | None, everything: bool) -> None:
    """List what there is by name, plugins and broken plugins among it."""
    console = stdout()
    kinds = registry.KINDS if kind is None else (_kind(kind),)
    for one in kinds:
        names = registry.names(one)
        others = registry.pml_names(one)
        found = [registry.component(one, name) for name in names]
        if found:
            console.print(_losses(found) if kind == "losses" else _components(one, found))
        if others and everything:
            theirs = [registry.component(one, name) for name in others]
            console.print("", _components(f"{one} of pytorch-metric-learning", theirs))
        elif others:
            console.print(
                f"[dim]and {len(others)} of pytorch-metric-learning as pml.<ClassName>; "
                f"zoo list {one} --all shows them[/]"
            )
        console.print()


@app.command()
@click.argument("kind", help="losses, miners, samplers, backbones or datasets.")
@click.argument("name", required=False, help="A name that `zoo list` shows, or pml.<ClassName>.")
def show(kind: str, name: str | None) -> None:
    """Show all that is known of one component: its arguments, paper and documentation."""
    from zoo._source import plain

    console = stdout()
    if name is None:
        raise UserError(_without_name(kind))
    found = registry.describe(_kind(kind), name)
    console.print(f"[bold]{escape(name)}[/]  {escape(plain(found.summary))}")
    facts = {"paper": found.paper, "from": found.distribution, "class": found.target}
    for fact, text in facts.items():
        if text:
            console.print(f"{fact:<6} {escape(text)}")
    if found.broken:
        console.print(f"[red]broken {escape(found.broken)}[/]")
        raise Exit(1)
    target = registry.load(_kind(kind), name)
    if hasattr(target, "variants") and name.endswith(".*"):
        console.print("\n" + escape(", ".join(name[:-1] + v for v in target.variants())))
    if found.parameters:
        console.print(_parameters(found))
    text = plain(registry.documentation(target)).replace("::\n", ":\n")
    console.print("\n" + escape(text or "Its class says nothing of itself."))


@app.command()
@click.argument(
    "names",
    nargs=-1,
    metavar="[KIND] [NAME]... [KEY=VALUE]...",
    help="A kind (losses, by default; miners, samplers, backbones, datasets); then names that `zoo "
    "list` shows, pml.<ClassName>, or module:Class; and arguments for one of them, as scale=32.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Every one of the kind that `zoo list` shows.",
)
@click.option(
    "--only", multiple=True, metavar="CHECK", help="This check alone; may be given again."
)
@click.option(
    "--list", "list_them", is_flag=True, help="List the checks and what each requires; run none."
)
def check(names: tuple[str, ...], everything: bool, only: tuple[str, ...], list_them: bool) -> None:
    """Put losses through checks: gradients, symmetries, hard numbers, memory, learning.

    Miners, samplers, backbones and data sets have checks of their own. A check that fails shows the
    smallest batch that it fails on. Ends with status 1 if a component fails a check, or passes one
    that it says it cannot.

    Examples: [cyan]zoo check ice[/], [cyan]zoo check pml.NTXentLoss temperature=0.01[/],
    [cyan]zoo check my_package.my_module:MyLoss --only check_permutation[/],
    [cyan]zoo check samplers m_per_class classes=4 per_class=2[/]
    """
    kind: registry.Kind = "losses"
    if names and names[0] in registry.KINDS:
        kind, names = _kind(names[0]), names[1:]
    if list_them:
        stdout().print(_checks(kind))
        return
    wanted = list(dict.fromkeys(name for name in names if "=" not in name))
    settings = [name for name in names if "=" in name]
    everyone = [name for name in registry.names(kind) if everything and name not in wanted]
    noun = registry.noun_of(kind)
    if not wanted + everyone:
        raise UserError(f"name a {noun} to check, or give --all")
    if settings and len(wanted + everyone) > 1:
        raise UserError(f"{settings[0]}: arguments are for one {noun}; check it alone")
    arguments = _arguments(settings)
    reports = [_check(kind, name, arguments, only) for name in wanted]
    broken = []
    for name in everyone:
        try:
            reports.append(_check(kind, name, arguments, only))
        except UserError as error:
            _complain(f"{name}: {error}")
            broken.append(name)
    bad = [report.name for report in reports if not report.ok] + broken
    if len(reports) + len(broken) > 1:
        stdout().print(f"{len(reports) + len(broken)} {kind}, " + _verdict(bad))
    if bad:
        raise Exit(1)


@app.command("config")
@click.argument("config", required=False, help="A YAML file, or the name of a shipped config.")
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings to change, such as loss.scale=32.",
)
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of configs instead, for an editor."
)
def config_(config: str | None, overrides: tuple[str, ...], schema: bool) -> None:
    """Print a config with everything that it extends and every default filled in.

    Without a name, list the configs that ship with the zoo.

    Examples: [cyan]zoo config ice_glyphs loss.scale=32[/],
    [cyan]zoo config --schema > zoo.schema.json[/]
    """
    from zoo import config as configuration

    if schema:
        from zoo import _editor_schema

        text = json.dumps(_editor_schema.schema(), indent=1, ensure_ascii=False)
        echo(text if text == harmless(text) else json.dumps(json.loads(text), indent=1))
        return

    if config is None:
        for name in configuration.shipped():
            echo(name)
        return
    variants = configuration.load_all(config, overrides)
    echo(configuration.dump_all(variants), end="")


def _check(
    kind: registry.Kind, name: str, arguments: dict[str, Any], only: Sequence[str]
) -> Report:
    """Run the checks of one component under a bar, and print what came of them."""
    from zoo import checks
    from zoo._words import counted

    subject = checks.subject_of(name, arguments, kind)
    found = checks.records(subject, only)
    total = len(set(only)) or len(checks.CHECKS_OF[kind])
    report = checks.Report(subject.name, tuple(Reporter().track(found, total, subject.name)))
    console = stdout()
    table = Table(title=escape(report.name), title_justify="left", title_style="bold", box=None)
    for head in ("check", "outcome", "seconds", "note"):
        table.add_column(head, justify="right" if head == "seconds" else "left")
    for record in report.records:
        colour = "red" if not record.ok else "green" if record.outcome == "passed" else "dim"
        note = escape(record.note) if record.ok else "see below"
        outcome = f"[{colour}]{record.outcome}[/]"
        table.add_row(record.check, outcome, f"{record.seconds:.2f}", note)
    console.print(table)
    for (failed, *others), message in report.faults:
        console.print(f"\n[red]{failed}[/] {escape(message)}", soft_wrap=True)
        if others:
            also = f"[red]the same[/] in {counted(len(others), 'more check')}: {', '.join(others)}"
            console.print(also, soft_wrap=True)
    console.print(f"\n{escape(report.summary)}\n", soft_wrap=True)
    return report


def _verdict(bad: list[str]) -> str:
    return f"{len(bad)} of them with faults: {', '.join(bad)}" if bad else "all of them as they say"


def _arguments(settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments; the values are YAML, as in a config."""
    from zoo import _yaml

    arguments = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        problems: list[_yaml.Problem] = []
        node = _yaml.parse(value, setting, problems)
        if node is None or not key.isidentifier():
            said = problems[0].message if problems else "must be of the form key=value"
            raise UserError(f"{setting}: {said}")
        if key in arguments:
            raise UserError(f"{setting}: {key} is given twice")
        arguments[key] = node.plain()
    return arguments


def _complain(message: str, prefix: str = "error: ") -> None:
    shown = _TOO_LONG.sub(r"\1...\2", prefix + message)
    stderr().print(shown, markup=False, soft_wrap=True)


def _kind(name: str) -> registry.Kind:
    registry.names(name)  # type: ignore[arg-type] # raises if there is no such kind
    return name  # type: ignore[return-value]


def _checks(kind: registry.Kind) -> Table:
    """Return the table of the checks of a kind, in the order in which they are run."""
    from zoo import checks

    rows = [(name, escape(summary)) for name, summary in checks.summaries(kind).items()]
    head = f"what it requires of a {registry.noun_of(kind)}"
    return _table("checks", ("check", head), rows)


def _without_name(kind: str) -> str:
    """Return what to say where `zoo show` was given one word: a kind or, more likely, a name."""
    if kind in registry.KINDS:
        return f"name one of them too; `zoo list {kind}` shows what there is"
    kinds = registry.kinds_of(kind)
    if not kinds:
        known = [name for one in registry.KINDS for name in registry.names(one)]
        return f"there is nothing named {kind!r}" + did_you_mean(kind, [*registry.KINDS, *known])
    return "say of which kind: " + one_of([f"zoo show {found} {kind}" for found in kinds])


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without its empty columns; where one has single words, they stay whole."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        whole = not any(" " in row[i] for row in rows)
        table.add_column(heads[i], overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table


def _components(title: str, found: list[registry.Component]) -> Table:
    return _table(title, ("name", "what it is", "from"), [_listing(one) for one in found])


def _listing(component: registry.Component) -> tuple[str, str, str]:
    from zoo._source import plain

    name, summary = escape(component.name), escape(plain(component.summary))
    if component.broken:
        return f"[red]{name}[/]", f"[red]broken: {escape(component.broken)}[/]", _origin(component)
    paper = f" [dim]({escape(component.paper)})[/]" if component.paper else ""
    return f"[cyan]{name}[/]", summary + paper, _origin(component)


def _losses(found: list[registry.Component]) -> Table:
    """Return the table of losses: what each looks at, needs and costs, and what checks gave."""
    from zoo import _check_record

    recorded = _check_record.read()
    heads = ("name", "paper", "kind", "cost", "classes", "sampler", "checks", "from")
    rows = []
    for loss in found:
        name = escape(loss.name)
        if loss.broken:
            reason = f"[red]broken: {escape(loss.broken)}[/]"
            rows.append((f"[red]{name}[/]", reason, "", "", "", "", "", _origin(loss)))
            continue
        paper = re.match(r".*? \d{4}", loss.paper)
        needs = "needed" if "num_classes" in loss.arguments else ""
        own = loss.distribution == "metric-zoo"
        checked = _check_record.in_short(recorded.get(loss.name) if own else None)
        kind, cost, sampler = (escape(loss.facts.get(f, "")) for f in ("kind", "cost", "sampler"))
        shown, origin = escape(paper[0] if paper else loss.paper), _origin(loss)
        rows.append((f"[cyan]{name}[/]", shown, kind, cost, needs, sampler, checked, origin))
    table = _table("losses", heads, rows)
    table.caption = (
        "cost: time; N images of a batch, d of an embedding, C classes, K of the batch\n"
        "classes: whether it has weights for each class of the training data\n"
        "checks: how many pass; cannot: those that its formula rules out, see zoo check NAME"
    )
    table.caption_justify = "left"
    return table


def _origin(component: registry.Component) -> str:
    """Return where a component is from, if that is not plain from its name."""
    known = ("metric-zoo", "pytorch-metric-learning")
    return "" if component.distribution in known else escape(component.distribution)


def _parameters(component: registry.Component) -> Table:
    """Return the table of arguments; those that the run supplies are not for the user to give."""
    from zoo.base import RUNTIME

    rows = []
    for name, default, annotation in component.parameters:
        if name in RUNTIME[component.kind]:
            rows.append((name, "given by the run", ""))
        else:
            shown = "required" if default is REQUIRED else escape(repr(default))
            rows.append((name, shown, escape(_type_name(annotation))))
    return _table("", ("argument", "default", "type"), rows)


def _type_name(annotation: Any) -> str:
    import inspect

    if annotation is inspect.Parameter.empty:
        return ""
    return inspect.formatannotation(annotation).replace("typing.", "")


if __name__ == "__main__":
    main()
