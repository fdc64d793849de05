"""``zoo compare``: is one run better than another, or is it chance?"""

from __future__ import annotations

import json

import rich_click as click

from zoo.progress import echo, stdout


@click.command()
@click.argument("a", help="A run, or an experiment of several seeds.")
@click.argument("b", help="What it is compared with.")
@click.option("--ks", metavar="1,10", help="Values of K; by default all that both have.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was computed as JSON.")
def compare(a: str, b: str, ks: str | None, as_json: bool) -> None:
    """Compare two runs query by query: is the difference more than chance?

    Name a run by its folder, its name in runs/, or the beginning of that name. If several runs have
    this beginning and differ only in their seed, all of them are compared, paired by seed.

    Examples: [cyan]zoo compare ice_glyphs rll_glyphs[/],
    [cyan]zoo compare runs/a-1234abcd-s0 runs/b-1234abcd-s0 --ks 1 --json[/]
    """
    from zoo.comparing import compare as comparing
    from zoo.comparing import table
    from zoo.runs import experiments

    chosen = None if ks is None else _numbers(ks)
    one, other = (comparing.read(experiments.find(text)) for text in (a, b))
    found = comparing.compare(one, other, chosen)
    if as_json:
        notes = list(table.notes(found))
        echo(json.dumps({**found.as_json(), "notes": notes}, indent=2))
    else:
        console = stdout()
        console.print(table.to_table(found, console.width))


def _numbers(text: str) -> list[int]:
    """Return the values of ``--ks``."""
    from zoo.errors import UserError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--ks: must be whole numbers such as 1,10, not {text!r}") from None
