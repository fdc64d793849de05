"""``zoo config``: print a config with all its defaults."""

from __future__ import annotations

import json

import rich_click as click

from zoo.progress import echo
from zoo.support.text import harmless


@click.command("config")
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
    from zoo.config import loading

    if schema:
        from zoo.config import editor

        text = json.dumps(editor.schema(), indent=1, ensure_ascii=False)
        echo(text if text == harmless(text) else json.dumps(json.loads(text), indent=1))
        return

    if config is None:
        for name in loading.shipped():
            echo(name)
        return
    variants = loading.load_all(config, overrides)
    echo(loading.dump_all(variants), end="")
