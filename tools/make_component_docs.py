"""Write docs/components.md, the page of all components but losses.

    python tools/make_component_docs.py [--check]

With --check nothing is written, and the exit status says whether the page is stale.
"""

from __future__ import annotations

from _pages import ROOT, keep
from make_loss_docs import section

from zoo import registry
from zoo.config import loading

PAGE = ROOT / "docs" / "components.md"
OPENING = """# Miners, samplers, backbones, data sets, spaces, trackers

Made by `python tools/make_component_docs.py` from the classes; do not edit. In a config, give the
name and the arguments beside it: `sampler: {name: m_per_class, classes: 12, per_class: 5}`. For
losses, see [their own page](losses.md).
"""
INTRODUCTIONS: dict[registry.Kind, tuple[str, str]] = {
    "miners": (
        "Miners",
        "A miner picks the pairs or triplets of a batch that the loss uses: `miner: batch_hard`.\n"
        "`zoo list miners --all` also lists the miners of pytorch-metric-learning.",
    ),
    "samplers": ("Samplers", "A sampler chooses the images of each batch."),
    "backbones": (
        "Backbones",
        "The network below the embedding: `model: {backbone: torchvision.resnet50}`. A name that\n"
        "ends in `*` stands for many; `zoo show backbones 'torchvision.*'` lists them.",
    ),
    "datasets": (
        "Data sets",
        "Images and their labels. [Data sets](data.md) explains how to get and verify them.",
    ),
    "spaces": (
        "Spaces",
        "A space has the distance by which images are compared instead of the cosine:\n"
        "`model: {space: hyperbolic}`. [Hooks](hooks.md#another-space) has one of your own.",
    ),
    "trackers": (
        "Trackers",
        "A tracker shows the numbers of a run in another place while it trains: `trackers: [csv,\n"
        "tensorboard]`. [Trackers](trackers.md) explains them.",
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
    """Write the page, or check that it is up to date."""
    keep(PAGE, page())


if __name__ == "__main__":
    main()
