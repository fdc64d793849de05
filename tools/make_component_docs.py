"""Write docs/components.md, the page of miners, samplers, backbones and data sets.

    python tools/make_component_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

from _pages import ROOT, keep
from make_loss_docs import section

from zoo import registry
from zoo.config import loading

PAGE = ROOT / "docs" / "components.md"
OPENING = """# Miners, samplers, backbones, data sets

Made by `python tools/make_component_docs.py` from the classes; do not edit. In a config, each is a
name and, beside it, its arguments: `sampler: {name: m_per_class, classes: 12, per_class: 5}`. The
[losses](losses.md) have a page of their own.
"""
INTRODUCTIONS: dict[registry.Kind, tuple[str, str]] = {
    "miners": (
        "Miners",
        "What picks the pairs or triplets of a batch that the loss looks at: `miner: batch_hard`.\n"
        "Besides, those of pytorch-metric-learning: `zoo list miners --all`.",
    ),
    "samplers": ("Samplers", "What decides which images are a batch."),
    "backbones": (
        "Backbones",
        "The network below the embedding: `model: {backbone: torchvision.resnet50}`. A name that\n"
        "ends in `*` stands for many; `zoo show backbones 'torchvision.*'` lists them.",
    ),
    "datasets": (
        "Data sets",
        "Images and their labels. How to get them, and to look them over: [data sets](data.md).",
    ),
}


def page() -> str:
    """Return the whole page."""
    parts = [OPENING]
    for kind, (title, introduction) in INTRODUCTIONS.items():
        parts.append(f"\n## {title}\n\n{introduction}\n")
        parts += [f"\n#{section(kind, name, loading.set_by_run(kind))}" for name in own(kind)]
    return "".join(parts)


def own(kind: registry.Kind) -> list[str]:
    """Return the names of this repository's components."""
    found = [registry.component(kind, name) for name in registry.names(kind)]
    return [one.name for one in found if one.distribution == "metric-zoo"]


def main() -> None:
    """Write the page, or say whether it is stale."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
