"""Tables are broken into lines where a person would."""

from __future__ import annotations

import pytest

from zoo.tables.formats.narrow import fit, fold, width_of


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("ice_glyphs", 10, ["ice_glyphs"]),
        ("triplet_semihard_glyphs", 15, ["triplet_", "semihard_glyphs"]),
        ("torchvision.mobilenet_v2", 13, ["torchvision.", "mobilenet_v2"]),
        ("a\n  loss.scale=64\n  x=[1, 2]", 9, ["a", "  loss.scale=64", "  x=[1,", "  2]"]),
        ("  pooled features", 10, ["  pooled", "  features"]),
        ("unbreakable", 4, ["unbreakable"]),
        ("", 3, [""]),
    ],
)
def test_fold(text, width, lines):
    assert fold(text, width).split("\n") == lines


ROWS = [
    ["config", "loss", "R@1"],
    ["triplet_semihard_glyphs", "triplet_semihard", "87.69 ± 0.86"],
    ["ice_glyphs", "ice", "49.19"],
]


@pytest.mark.parametrize("width", range(28, 60))
def test_fit(width):
    found = fit(ROWS, [2], width)
    assert width_of(found) <= width
    flat = [[cell.replace("\n", "") for cell in row] for row in found]
    assert flat == [[*row[:2], row[2].replace(" ", "", 1)] for row in ROWS]
    assert found[1][2] == "87.69\n± 0.86"


def test_words_stay_whole_where_there_is_no_room():
    assert width_of(fit(ROWS, [2], 3)) == len("semihard_") + len("semihard") + len("± 0.86") + 2 * 2
