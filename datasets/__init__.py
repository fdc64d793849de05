"""Data sets and samplers of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.datasets":
    raise ImportError(f"import zoo.datasets, not {__name__}")

BUILTIN: dict[str, dict[str, str]] = {
    "datasets": {
        "cars196": "zoo.datasets.cars196:Cars196",
        "cub200": "zoo.datasets.cub200:Cub200",
        "glyphs": "zoo.datasets.glyphs:Glyphs",
        "image_folder": "zoo.datasets.image_folder:ImageFolder",
        "sop": "zoo.datasets.sop:Sop",
    },
    "samplers": {
        "anchor_neighbours": "zoo.datasets.anchor_neighbours:AnchorNeighboursSampler",
        "grouped": "zoo.datasets.grouped:GroupedSampler",
        "m_per_class": "zoo.datasets.m_per_class:MPerClassSampler",
        "shuffle": "zoo.datasets.shuffle:ShuffleSampler",
    },
}
