"""The tables of the paper come out as the paper has them, and others in their shape."""

from __future__ import annotations

import pytest
import yaml
from boards import result, results_of
from places import PAPER

from zoo import UserError, leaderboard
from zoo.config import shipped
from zoo.tables import shaped
from zoo.tables import shapes as tables_shape
from zoo.tables import table as tables_table

BENCHMARKS = ("cars", "cub", "sop")
ABLATIONS = {2: "scale", 4: "batch_content", 5: "batch_size", 6: "embedding_size"}


@pytest.fixture(scope="module")
def everything():
    """What all runs of the paper would leave, if each gave the paper's numbers."""
    names = [name for name in shipped() if name.rpartition("_")[2] in BENCHMARKS]
    return [found for name in names for found in results_of(name)]


@pytest.fixture(scope="module")
def numbers():
    if not PAPER.is_file():
        pytest.skip("the paper's tables are not at hand")
    return yaml.safe_load(PAPER.read_text("utf-8"))


def cells(runs, shape, **more):
    (table,) = leaderboard.tables(runs, shape, **more)
    grid = tables_table.layout(table)
    return grid, [[cell.text for cell in line.cells] for line in grid.lines]


def shown(values):
    return ["–" if value is None else f"{value:.1f}" for value in values]


@pytest.mark.filterwarnings("ignore:Table 3 has no")
def test_table_3(everything, numbers):
    wanted = numbers["table3"]
    grid, found = cells(everything, "table3")
    assert [(head.group, head.text) for head in grid.heads] == [
        ("", "K"),
        *(
            (title, str(k))
            for title, key in [("CARS196", "cars196"), ("CUB-200-2011", "cub200"), ("SOP", "sop")]
            for k in wanted["columns"][key]
        ),
    ]
    assert found == [
        [row["title"], *shown(row["cars196"] + row["cub200"] + row["sop"])]
        for row in wanted["rows"].values()
    ]
    ruled = [line.cells[0].text for line in grid.lines if line.rule]
    assert ruled == ["RLL-(L,M,H)"]


@pytest.mark.filterwarnings("ignore:Table 3 has no")
def test_what_the_paper_has_in_bold_is_in_bold(everything):
    grid, _ = cells(everything, "table3")
    bold = {line.cells[0].text: [c.text for c in line.cells if c.best] for line in grid.lines}
    assert {title: found for title, found in bold.items() if found} == {
        "RLL": ["69.7", "86.9"],
        "ICE": ["77.0", "85.3", "91.3", "94.8", "58.3", "79.4", "77.3", "90.0", "95.6"],
    }


@pytest.mark.parametrize("number", ABLATIONS)
def test_the_ablations(number, everything, numbers):
    key = f"table{number}_{ABLATIONS[number]}_sop"
    grid, found = cells(everything, f"table{number}")
    rows = next(v for k, v in numbers.items() if k.startswith(f"table{number}_"))["rows"]
    assert [head.text for head in grid.heads[1:]] == ["R@1", "R@10", "R@100"], key
    titles = [f"{title}".replace("x", " × ") for title in rows]
    ends = [row[0].rpartition("=")[2] for row in found]
    assert ends == titles
    assert [row[1:] for row in found] == [shown(values) for values in rows.values()]
    best = max(rows.values(), key=lambda values: values[0])
    bold = [[cell.text for cell in line.cells if cell.best] for line in grid.lines]
    assert shown(best) in bold
    assert not any(mark for mark, _ in grid.notes)


def test_the_shapes_have_the_numbers_of_the_configs(everything):
    """So that a table with the paper's values beside ours has the same ones as a board."""
    shapes = {shape.paper: shape for shape in map(tables_shape.load, tables_shape._library())}
    assert sorted(shapes) == ["Table 2", "Table 3", "Table 4", "Table 5", "Table 6"]
    for run in everything:
        paper = run["paper"]
        shape = shapes[paper["table"]]
        (row,) = [row for row in shape.rows if row.key == paper["row"]]
        (columns,) = [one for one in shape.datasets if one.name == paper["dataset"]]
        reported = dict(zip(columns.ks, row.recall[columns.name], strict=True))
        assert reported == {int(k): value for k, value in paper["recall"].items()}


def test_a_run_finds_its_row_by_its_settings_too(everything):
    """Runs of Table 2 whose configs name no table, or another, as that of scale 64 does."""
    scales = [run | {"paper": None} for run in everything if run["config"] == "scale_sop"]
    _, found = cells(scales, "table2")
    assert found == cells(everything, "table2")[1]
    (alone,) = [run for run in everything if run["config"] == "ice_sop"]
    for number, title in [(2, "s=64"), (4, "C × k=90 × 2"), (5, "N=180"), (6, "512")]:
        _, rows = cells([alone], f"table{number}")
        assert [row[0] for row in rows if row[1] != "–"] == [title]
        assert len(rows) == len(cells(everything, f"table{number}")[1])


def test_the_papers_values_below_ours():
    runs = results_of("ice_sop", recall={1: 0.78, 10: 0.9, 100: 0.95})
    grid, found = cells(runs, "table3", paper=True)
    assert len(found) == 24
    ours = next(n for n, row in enumerate(found) if row[0] == "ICE")
    assert found[ours][-3:] == ["78.0", "90.0", "95.0"]
    assert found[ours + 1][0] == "  paper"
    assert found[ours + 1][-3:] == ["77.3 (+0.7)", "90.0 (+0.0)", "95.6 (-0.6)"]
    assert found[ours + 1][1:5] == ["77.0", "85.3", "91.3", "94.8"]
    assert ("", f"paper: {tables_shape.load('table3').protocol.said}") in grid.notes


def test_the_papers_values_are_of_its_protocol():
    runs = results_of("ice_sop", "images.crop=224")
    grid, _ = cells(runs, "table3", paper=True)
    assert ("1", "not measured as the paper's values: images.crop=224 instead of 227") in grid.notes


def test_what_is_missing_is_a_dash():
    _, found = cells(results_of("ice_cub"), "table3")
    assert found[9] == ["ICE", *"––––", "58.3", "69.5", "79.4", "86.7", *"–––"]
    assert sum(cell != "–" for row in found for cell in row[1:]) == 4


def other(config, loss, recall=0.5, **more):
    return result(config, {1: recall, 5: recall}, digest=config, **more) | {"loss": loss}


def test_other_data_in_the_same_shape():
    runs = [other("a", "ice"), other("b", None), other("c", "rll", dataset="sop")]
    runs.append(other("d", "ice", dataset="image_folder"))
    runs[3]["dataset"]["folder"] = "birds"
    grid, found = cells(runs, "table3", wanted={"dataset": ["glyphs", "birds"]})
    assert grid.title.startswith("Recall@K in percent, birds (image_folder), glyphs; the rows of")
    assert [(head.group, head.text) for head in grid.heads[1:]] == [
        *(("birds (image_folder)", k) for k in ("1", "5")),
        *(("glyphs", k) for k in ("1", "5")),
    ]
    assert len(found) == 12
    assert found[0] == ["Without fine-tuning", "–", "–", "50.0", "50.0"]
    assert found[9] == ["ICE", *["50.0"] * 4]
    grid, found = cells(runs, "table3", wanted={"dataset": ["*"]})
    assert [head.group for head in grid.heads[1:4]] == ["SOP"] * 3
    assert found[8][:3] == ["RLL", "50.0", "–"]


def test_other_data_has_the_rows_that_there_are():
    """Not those of the paper, where the paper's are values of a setting."""
    runs = [
        r for s in (8, 16, 64) for r in results_of("ice_glyphs", f"loss.scale={s}", recall={1: 0.5})
    ]
    grid, found = cells(runs, "table2", wanted={"dataset": ["glyphs"]})
    assert [row[0] for row in found] == ["s=8", "s=16", "s=64"]
    assert grid.heads[0].text == ""
    assert "SOP" not in grid.title
    runs = results_of("ablation/batch_size_glyphs", recall={1: 0.5})
    _, found = cells(runs, "table5", wanted={"dataset": ["glyphs"]})
    assert [row[0] for row in found] == ["N=32", "N=64", "N=128", "N=256"]


def test_several_experiments_in_a_row_are_told_apart():
    runs = results_of("ice_sop") + results_of("ice_sop", "loss.scale=16", recall={1: 0.5})
    runs += results_of("ice_cub")
    _, found = cells(runs, "table3")
    assert [row[0] for row in found[9:12]] == ["ICE", "ICE: loss.scale=16", "ICE: loss.scale=64"]
    assert found[9][5:] == ["58.3", "69.5", "79.4", "86.7", "–", "–", "–"]
    assert found[10][5:] == [*"––––", "50.0", "–", "–"]
    assert found[11][9:] == ["77.3", "90.0", "95.6"]


def test_seeds_and_names_of_the_same_settings_are_one_experiment():
    runs = results_of("ice_sop") + results_of("ice_sop", "name=again", seed=1)
    (table,) = leaderboard.tables(runs, "table3")
    (entry,) = [e for line in table.lines for e in line.entries if e.experiment]
    assert len(entry.experiment.results) == 2


def test_runs_that_are_not_comparable_are_marked_in_their_column():
    runs = [r for name in ("ice_cub", "rll_cub", "cce_cub", "ice_sop") for r in results_of(name)]
    runs += results_of("lifted_struct_cub", "model.backbone=convnet")
    runs += results_of("lifted_struct_sop")
    grid, _ = cells(runs, "table3")
    line = next(line for line in grid.lines if line.cells[0].text == "Lifted Struct")
    assert [cell.marks for cell in line.cells] == ["", *[""] * 4, *["1"] * 4, *[""] * 3]
    (note,) = [note for mark, note in grid.notes if mark == "1"]
    assert note == "not comparable with the others: model.backbone=convnet instead of bn_inception"


def test_a_column_may_hold_other_images():
    one, two = (
        other(n, "ice", dataset="sop", fingerprint=f) for n, f in [("a", "f0"), ("b", "f1")]
    )
    grid, _ = cells([one, two | {"loss": "rll"}], "table3")
    assert (
        "1",
        "not comparable with the others: dataset.fingerprint=f0 instead of f1",
    ) in grid.notes


def test_what_is_left_out_is_told():
    runs = [*results_of("ice_sop"), other("mine", "mine", dataset="sop"), other("b", "ice")]
    with pytest.warns(UserWarning, match="Table 3 has no") as said:
        cells(runs, "table3")
    assert [str(one.message) for one in said] == [
        "Table 3 has no row for 1 run (mine); --others adds rows",
        "Table 3 has no columns for 1 run (glyphs); --dataset glyphs makes some",
    ]
    with pytest.raises(UserError, match="no columns for 1 run .glyphs.; --dataset glyphs makes"):
        cells([other("b", "ice")], "table3")


def test_a_table_with_nothing_in_it_is_refused():
    with pytest.raises(UserError, match="no run is for Table 2"):
        cells(results_of("ice_cub"), "table2")
    with pytest.raises(UserError, match="Table 2 has no row for 1 run .b."):
        cells([other("b", "rll")], "table2", wanted={"dataset": ["*"]}, paper=True)
    _, found = cells(results_of("ice_cub"), "table2", paper=True)
    assert found[:2] == [["s=1", *"–––"], ["  paper", "42.0", "58.1", "74.1"]]


def test_others_get_rows():
    runs = [r for name in ("ice_sop", "rll_sop") for r in results_of(name)]
    mine = results_of("ice_sop", "loss={name: circle}", "name=mine", "paper=null", recall={1: 0.9})
    grid, found = cells(runs + mine, "table3", others=True)
    assert found[-1] == ["circle", *["–"] * 8, "90.0", "–", "–"]
    assert grid.lines[-1].rule
    assert grid.lines[-1].cells[9].best
    other_network = results_of(
        "ice_sop", "loss={name: circle}", "paper=null", "model.backbone=convnet", recall={1: 0.9}
    )
    grid, _ = cells(runs + other_network, "table3", others=True)
    assert not grid.lines[-1].cells[9].best
    assert grid.lines[-1].cells[0].marks == "1"


def test_networks_are_told_below():
    runs = [*results_of("ice_sop"), *results_of("ice_cub", "model.embedding_size=64")]
    grid, _ = cells(runs, "table3")
    assert [note for _, note in grid.notes] == [
        "Network on CUB-200-2011: bn_inception, 64-d",
        "Network on SOP: bn_inception, 512-d",
    ]


# ---- files of shapes

MINE = """\
paper: Table 9
caption: Mine
head: loss
digits: 2
protocol: {said: as I did, settings: {}}
datasets:
- {name: glyphs, title: Glyphs, ks: [1, 5]}
blocks:
- best: true
  rows:
  - {title: first, match: {loss: ice}}
  - {title: second, match: {loss: rll}, recall: {glyphs: [50, null]}}
"""


def test_a_shape_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    grid, found = cells([other("a", "ice", 0.25)], str(path), paper=True)
    assert grid.title == "Mine"
    assert found == [
        ["first", "25.00", "25.00"],
        ["second", "–", "–"],
        ["  paper", "50.0", "–"],
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not the shape of a table: "),
        ("- 1", "not the shape of a table: "),
        (MINE.replace("digits: 2", "digits: x"), "not the shape of a table: digits: "),
        (MINE + "colour: red\n", "not the shape of a table: colour: "),
        ("{", "not valid YAML"),
    ],
)
def test_what_is_no_shape_is_said(text, said, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as error:
        tables_shape.load(str(path))
    assert len(str(error.value).splitlines()) == 1


def test_a_shape_that_is_not_there():
    with pytest.raises(UserError, match="no shape 'tabel3'; did you mean table3"):
        tables_shape.load("tabel3")
    with pytest.raises(UserError, match="nowhere.yaml: cannot be read"):
        tables_shape.load("nowhere.yaml")
    with pytest.raises(UserError, match="there are runs, table2, table3, .* or name a YAML file"):
        tables_shape.load("xyz")


def test_natural_order():
    names = ["s=16", "s=8", "N=100", "a", ""]
    assert sorted(names, key=shaped._natural) == ["", "N=100", "a", "s=8", "s=16"]
