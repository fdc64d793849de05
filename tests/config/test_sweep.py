"""Several experiments in one config: what is made of `sweep` and `seeds`, here and there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from places import PAPER

from zoo import registry
from zoo.config import dump_all, load, load_all, schema, shipped
from zoo.errors import UserError
from zoo.registry import source

BASE = """
extends: ice_glyphs
loss: {scale: 8}
"""
ABLATIONS = [name for name in shipped() if name.startswith("ablation/")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE, "utf-8")


def write(text, name="x.yaml"):
    Path(name).write_text(f"extends: base.yaml\n{text}", "utf-8")
    return name


def values(variants, *keys):
    """Return what each experiment has at dotted keys."""
    plain = [variant.config.resolved() for variant in variants]
    return [tuple(schema.dig(data, key.split(".")) for key in keys) for data in plain]


def complaints(*arguments, **options):
    with pytest.raises(UserError) as caught:
        load_all(*arguments, **options)
    return str(caught.value).split("\n")


# ---- in a file


def test_a_map_of_values_multiplies_with_seeds_last():
    name = write("sweep: {loss.scale: [1, 2], optimizer.lr: [0.1, 0.2]}\nseeds: [5, 6]\n")
    variants = load_all(name)
    found = values(variants, "loss.scale", "optimizer.lr", "seed")
    assert found == [(s, lr, seed) for s in (1, 2) for lr in (0.1, 0.2) for seed in (5, 6)]
    assert variants[1].settings == {"loss.scale": 1, "optimizer.lr": 0.1, "seed": 6}
    assert len({variant.config.run_name() for variant in variants}) == 8


def test_a_list_of_maps_keeps_together_what_belongs_together():
    name = write(
        "paper: {table: T, dataset: d}\n"
        "sweep:\n"
        "- {loss.scale: 1, paper.row: a, paper.recall: {1: 50.0}}\n"
        "- {loss: rll, optimizer: {lr: 0.5}, paper: {row: b, recall: {1: 60.0}}}\n"
    )
    found = values(load_all(name), "loss.name", "loss.scale", "optimizer.lr", "paper.row")
    assert found == [("ice", 1, 0.001, "a"), ("rll", None, 0.5, "b")]
    assert [v.config.paper.recall for v in load_all(name)] == [{1: 50.0}, {1: 60.0}]


def test_each_is_what_its_settings_alone_would_make():
    name = write("sweep: {loss: [ice, {name: rll, alpha: 1.1}]}\nseeds: [0, 3]\n")
    last = load_all(name)[-1].config
    single = load("base.yaml", ["loss={name: rll, alpha: 1.1}", "seed=3", "name=x"])
    assert last == single
    assert last.run_name() == single.run_name()


def test_a_sweep_may_give_what_the_file_lacks():
    name = write("loss: {name: pml.ArcFaceLoss, marginn: 3}\n")
    assert "unknown argument" in complaints(name)[0]
    Path(name).write_text("extends: ice_folder\nsweep: {dataset.root: [a, b]}\n")
    assert values(load_all(name), "dataset.root") == [("a",), ("b",)]


def test_sweeps_are_inherited_joined_and_taken_back():
    write("sweep: {loss.scale: [1, 2]}\nseeds: [0, 1]\n", "parent.yaml")
    for text, count in (
        ("", 4),
        ("sweep: {optimizer.lr: [1, 2, 3]}\n", 12),
        ("sweep: {loss.scale: [3]}\n", 2),
        ("sweep: null\n", 2),
        ("sweep: null\nseeds: null\n", 1),
        ("sweep: [{loss.scale: 1}, {loss.scale: 2}, {}]\n", 6),
    ):
        Path("child.yaml").write_text(f"extends: parent.yaml\n{text}")
        assert len(load_all("child.yaml")) == count, text


def test_one_experiment_is_wanted_where_there_are_several():
    name = write("sweep: {loss.scale: [1, 2]}\nseeds: [0, 1]\n")
    with pytest.raises(
        UserError, match=r"^x\.yaml: has 4 experiments \(sweep, seeds\), but one is"
    ):
        load(name)
    assert load(name, ["sweep=null", "seeds=null"]).loss.arguments["scale"] == 8
    assert load(name, ["loss.scale=2", "seed=1"]).seed == 1


def test_without_a_sweep_there_is_one():
    (only,) = load_all("ice_glyphs")
    assert only.config == load("ice_glyphs")
    assert only.settings == {}


# ---- on the command line


def test_the_command_line_sweeps_too():
    variants = load_all("base.yaml", ["train.iterations=7"], ["loss.scale=1,16"], "0, 1,2")
    assert values(variants, "loss.scale", "seed") == [(s, n) for s in (1, 16) for n in (0, 1, 2)]
    assert {variant.config.train.iterations for variant in variants} == {7}
    variants = load_all("base.yaml", [], ["evaluate.ks=[1],[1, 2]", "loss=ice,{name: rll}"])
    wanted = [([1], "ice"), ([1], "rll"), ([1, 2], "ice"), ([1, 2], "rll")]
    assert values(variants, "evaluate.ks", "loss.name") == wanted


def test_the_command_line_has_the_last_word():
    name = write("sweep: {loss.scale: [1, 2], optimizer.lr: [0.1, 0.2]}\nseeds: [5, 6]\n")
    assert values(load_all(name, ["loss.scale=9", "seed=3"]), "loss.scale", "seed") == [(9, 3)] * 2
    assert len(load_all(name, [], ["loss.scale=7,8,9"])) == 3 * 2 * 2
    assert len(load_all(name, [], [], "1")) == 4
    assert len(load_all(name, ["optimizer={lr: 3}", "sweep.loss.scale=null"][:1])) == 4
    assert len(load_all(name, ["loss=rll", "sweep=null", "seeds=[1, 2, 3]"])) == 3


@pytest.mark.parametrize(
    ("overrides", "sweeps", "seeds", "expected"),
    [
        ([], ["loss.scale"], None, ["--sweep loss.scale: must be of the form key=value,value"]),
        ([], ["loss.scale="], None, ["--sweep loss.scale=: has no values"]),
        ([], [], "", ["--seeds : has no values"]),
        ([], ["loss.scale=1,["], None, ["--sweep loss.scale=1,[: not valid YAML: "]),
        ([], ["sweep=1,2"], None, ["--sweep sweep=1,2: cannot be swept"]),
        ([], ["=1,2"], None, ["--sweep =1,2: must be a key such as loss.scale, not ''"]),
        ([], [], "a", ["--seeds a: seed: must be a whole number, not 'a'"]),
        (["seed=1"], [], "1,2", ["--seeds 1,2: seed: given twice: seed=1 as well"]),
        (
            ["loss.scale=1"],
            ["loss=ice,rll", "loss.scale=2"],
            None,
            ["--sweep loss.scale=2: given twice: loss.scale=1 as well"],
        ),
        (
            [],
            ["loss=ice,cce", "loss.name=ice"],
            None,
            ["--sweep loss.name=ice: given twice: --sweep loss=ice,cce as well"],
        ),
        (
            [],
            ["loss.scael=1,2", "optimizer.lr=0.1,x"],
            None,
            [
                "--sweep loss.scael=1,2: unknown argument of ice; did you mean scale?",
                "--sweep optimizer.lr=0.1,x: must be a number, not 'x'",
            ],
        ),
    ],
)
def test_what_is_wrong_on_the_command_line(overrides, sweeps, seeds, expected):
    lines = complaints("base.yaml", overrides, sweeps, seeds)
    assert len(lines) == len(expected), lines
    for line, beginning in zip(lines, expected, strict=True):
        assert line.startswith(f"command line: {beginning}")


def test_a_config_that_was_left_a_folder_of_is_found():
    with pytest.raises(UserError, match="did you mean ablation/scale_sop"):
        load_all("scale_sop")


# ---- written


@pytest.mark.parametrize("name", ["ice_glyphs", *ABLATIONS])
def test_what_is_written_reads_as_the_same_experiments(name):
    variants = load_all(name)
    Path("again.yaml").write_text(dump_all(variants), "utf-8")
    again = load_all("again.yaml")
    assert [v.config for v in again] == [v.config for v in variants]
    assert dump_all(again) == dump_all(variants)


@pytest.mark.parametrize(
    "text",
    [
        "sweep: [{loss.scale: 1}, {optimizer.lr: 0.5}]\n",
        "sweep: [{loss: rll}, {loss: ice, loss.scale: 2}, {miner: null}]\nseeds: [2, 1]\n",
        "sweep: [{seed: 1, loss.scale: 1}, {seed: 2, loss.scale: 1}, {seed: 1, loss.scale: 3}]\n",
        "sweep: {schedule: [constant, {name: step, every: 3}], optimizer.lr: [0.1, 0.2]}\n",
        "sweep: {optimizer: [{name: sgd, lr: 0.1, momentum: 0.5}, {name: adam, lr: 0.1}]}\n",
    ],
)
def test_unusual_sweeps_are_written_too(text):
    variants = load_all(write(text))
    Path("again.yaml").write_text(dump_all(variants), "utf-8")
    assert [v.config for v in load_all("again.yaml")] == [v.config for v in variants]


def test_what_is_swept_is_written_as_such():
    name = write("sweep: {loss.scale: [1, 2]}\nseeds: [0, 1]\n")
    data = yaml.safe_load(dump_all(load_all(name)))
    assert (data["sweep"], data["seeds"]) == ({"loss.scale": [1, 2]}, [0, 1])
    assert "scale" not in data["loss"]
    assert "seed" not in data


# ---- what ships

TABLES = {
    "scale_sop": ("table2_scale_sop", "s={loss[scale]}"),
    "batch_content_sop": ("table4_batch_content_sop", "{sampler[classes]} x {sampler[per_class]}"),
    "batch_size_sop": ("table5_batch_size_sop", "N={batch}"),
    "embedding_size_sop": ("table6_embedding_size_sop", "{model[embedding_size]}"),
}


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's tables are not at hand")
@pytest.mark.parametrize("name", TABLES)
def test_ablations_have_the_paper_s_rows_and_numbers(name):
    key, called = TABLES[name]
    table = yaml.safe_load(PAPER.read_text("utf-8"))[key]
    variants = load_all(f"ablation/{name}")
    found = {}
    for variant in variants:
        paper, data = variant.config.paper, variant.config.resolved()
        batch = data["sampler"]["classes"] * data["sampler"]["per_class"]
        assert paper.table == f"Table {key[5]}"
        assert paper.row == called.format(batch=batch, **data)
        row = paper.row.replace(" ", "").removeprefix("s=").removeprefix("N=")
        found[row] = [paper.recall[k] for k in table["columns"]]
    assert found == {str(row): numbers for row, numbers in table["rows"].items()}


@pytest.mark.parametrize("name", TABLES)
def test_one_row_of_each_ablation_is_ice_of_table_3(name):
    digest = load("ice_sop").digest()
    assert [v.config.digest() for v in load_all(f"ablation/{name}")].count(digest) == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [("loss.scale", None), ("loss.scael", "mean scale"), ("foo", "unknown key")],
)
@pytest.mark.slow
def test_of_a_large_sweep_a_component_is_judged_once(monkeypatch, key, said):
    """And so are the arguments that a constructor takes: a dry run does not take minutes."""
    judged = []
    problems = registry.problems

    def counted(kind, name, *rest):
        judged.append((kind, name))
        return problems(kind, name, *rest)

    monkeypatch.setattr(registry, "problems", counted)
    monkeypatch.setattr(source.ast, "parse", _only(100, source.ast.parse))
    write(f"sweep: {{{key}: [{', '.join(str(1 + i / 10) for i in range(1000))}]}}")
    if said is None:
        assert len(load_all("x.yaml")) == 1000
    else:
        with pytest.raises(UserError, match=said) as caught:
            load_all("x.yaml")
        assert len(str(caught.value).splitlines()) == 1
    of_others = [kind for kind, _ in judged if kind != "losses"]
    assert len(of_others) <= 2 * 3


def _only(times, function):
    """Return a function that may be called so often."""
    calls = iter(range(times))

    def limited(*arguments):
        next(calls)
        return function(*arguments)

    return limited
