"""``zoo check``: run the checks of components."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from zoo import registry
from zoo.cli.listing.commands import kind_of
from zoo.cli.listing.tables import table_of
from zoo.cli.messages import complain
from zoo.errors import UserError
from zoo.progress import Reporter, stdout

if TYPE_CHECKING:
    from zoo.checks.outcomes import Report


@click.command()
@click.argument(
    "names",
    nargs=-1,
    metavar="[KIND] [NAME]... [KEY=VALUE]...",
    help="A kind (losses by default, or miners, samplers, backbones, datasets, spaces, trackers), "
    "then names from `zoo list`, pml.<ClassName> or module:Class. With one name, its arguments, "
    "such as scale=32.",
)
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Check everything of the kind that `zoo list` shows.",
)
@click.option(
    "--only", multiple=True, metavar="CHECK", help="Run only this check; may be repeated."
)
@click.option(
    "--list", "list_them", is_flag=True, help="Only list the checks and what each requires."
)
def check(names: tuple[str, ...], everything: bool, only: tuple[str, ...], list_them: bool) -> None:
    """Check losses: gradients, symmetries, extreme numbers, memory, learning.

    Miners, samplers, backbones, data sets, spaces and trackers have their own checks. A check that
    fails shows the smallest batch that it fails on. The exit status is 1 if a component fails a
    check, or passes one that it declares it cannot pass.

    Examples: [cyan]zoo check ice[/], [cyan]zoo check pml.NTXentLoss temperature=0.01[/],
    [cyan]zoo check my_package.my_module:MyLoss --only check_permutation[/],
    [cyan]zoo check samplers m_per_class classes=4 per_class=2[/]
    """
    kind: registry.Kind = "losses"
    if names and names[0] in registry.KINDS:
        kind, names = kind_of(names[0]), names[1:]
    if list_them:
        stdout().print(_checks(kind))
        return
    for name in names:
        if ":" in name and "=" not in name and not all(re.split(r"[:.]", name)):
            raise UserError(f"{name}: must be module:Class, such as my_package.my_module:MyLoss")
    wanted = list(dict.fromkeys(name for name in names if "=" not in name))
    settings = [name for name in names if "=" in name]
    others = [name for name in registry.names(kind) if everything and name not in wanted]
    noun = registry.noun_of(kind)
    if not wanted + others:
        raise UserError(f"name a {noun} to check, or give --all")
    if settings and len(wanted + others) > 1:
        raise UserError(f"{settings[0]}: arguments are for one {noun}; check it alone")
    arguments = _arguments(settings)
    reports = [_check(kind, name, arguments, only) for name in wanted]
    broken = []
    for name in others:
        try:
            reports.append(_check(kind, name, arguments, only))
        except UserError as error:
            complain(f"{name}: {error}")
            broken.append(name)
    bad = [report.name for report in reports if not report.ok] + broken
    if len(reports) + len(broken) > 1:
        stdout().print(f"{len(reports) + len(broken)} {kind}, " + _verdict(bad))
    if bad:
        raise Exit(1)


def _check(
    kind: registry.Kind, name: str, arguments: dict[str, Any], only: Sequence[str]
) -> Report:
    """Run the checks of one component under a progress bar, and print their outcomes."""
    from zoo.checks import outcomes, running
    from zoo.support.text import counted

    subject = running.subject_of(name, arguments, kind)
    found = running.records(subject, only)
    total = len(set(only)) or len(running.CHECKS_OF[kind])
    report = outcomes.Report(subject.name, tuple(Reporter().track(found, total, subject.name)))
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
    return f"{len(bad)} of them with faults: {', '.join(bad)}" if bad else "all as expected"


def _arguments(settings: list[str]) -> dict[str, Any]:
    """Return constructor arguments; the values are YAML, as in a config."""
    from zoo.support import yaml

    arguments = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        problems: list[yaml.Problem] = []
        node = yaml.parse(value, setting, problems)
        if node is None or not key.isidentifier():
            reason = problems[0].message if problems else "must be of the form key=value"
            raise UserError(f"{setting}: {reason}")
        if key in arguments:
            raise UserError(f"{setting}: {key} is given twice")
        arguments[key] = node.plain()
    return arguments


def _checks(kind: registry.Kind) -> Table:
    """Return the table of the checks of a kind, in the order in which they are run."""
    from zoo.checks import running
    from zoo.registry.source import unmarked

    rows = [(name, escape(unmarked(summary))) for name, summary in running.summaries(kind).items()]
    head = f"what it requires of a {registry.noun_of(kind)}"
    return table_of("checks", ("check", head), rows)
