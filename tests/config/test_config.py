"""Configs: what is understood, what is refused, and what is said about it."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from places import ROOT, TESTS

import zoo
from zoo.config import dump, load, load_all, loading, messages, schema, shipped, synonyms
from zoo.config.schema import ComponentSpec, Config
from zoo.errors import UserError
from zoo.registry import components as registry_components
from zoo.registry import source as registry_source
from zoo.support import yaml as support_yaml

TABLE = yaml.safe_load((TESTS / "config" / "malformed_configs.yaml").read_text("utf-8"))
CONFIGS = ROOT / "configs"
# What a config leaves to the user.
NEEDED = {name: ["dataset.root=photographs"] for name in shipped() if name.endswith("_folder")}


@functools.cache
def variants(name: str) -> list[Any]:
    """Return what a shipped config gives, loaded once for all tests."""
    return load_all(name, NEEDED.get(name, []))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ok.yaml").write_text(TABLE["ok.yaml"], "utf-8")
    return tmp_path


@pytest.fixture
def components(monkeypatch):
    """Let a test register components that are gone after it."""
    monkeypatch.setattr(registry_components, "_registered", dict(registry_components._registered))


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, "utf-8")
    return name


def complaints(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(source, overrides)
    return str(caught.value).split("\n")


MOST_SLOW = [
    name
    if name.startswith(("ice_", "spectral_clust_"))
    else pytest.param(name, marks=pytest.mark.slow)
    for name in shipped()
]


# ---- what is told without importing a component


@pytest.mark.parametrize("name", MOST_SLOW)
def test_a_guess_is_what_would_be_loaded(name):
    """A constructor of PML passes arguments on; a component's own defaults are filled in later."""
    settings = NEEDED.get(name, [])
    found = loading.guess(name, settings)
    checked, *others = [variant.config for variant in variants(name)]
    passes_on = name.startswith(("spectral_clust", "prototypical", "moderate_positive"))
    parts = (checked.loss, checked.miner, checked.model.backbone)
    nested = any(isinstance(v, dict | list) for part in parts if part for v in plain(part).values())
    assert found == (None if others or passes_on or nested else checked)


def plain(part: ComponentSpec) -> dict[str, Any]:
    """Return the arguments of a component but for those with a schedule."""
    given = part.model_dump()
    return {k: v for k, v in given.items() if not (isinstance(v, dict) and "from" in v)}


MODULES = {
    "shared_defaults": "SIZE = 3\nSIZE_OR_NOT = 1\nSIZE_OR_NOT = 2\n",
    "parent": "class Parent:\n    def __init__(self, a, b=2, *, c='x', d=None): ...\n",
    "ours": """
import functools
from shared_defaults import SIZE, SIZE_OR_NOT
from parent import Parent as Base

class Own:
    def __init__(self, size=SIZE, shift=-1.5): ...
class Child(Base): pass
class Both(Base, Own): pass
class PassesOn(Base):
    def __init__(self, e=1, **kwargs): ...
class Computed:
    def __init__(self, e=2 * SIZE): ...
class Unclear:
    def __init__(self, e=SIZE_OR_NOT): ...
class Wrapped:
    @functools.cache
    def __init__(self, e=1): ...
class Elsewhere(functools.partial): pass
class Circle(Circle): pass
""",
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Own", {"size": 3, "shift": -1.5}),
        ("Child", {"b": 2, "c": "x", "d": None}),
        *((n, None) for n in ("Both", "PassesOn", "Computed", "Unclear", "Wrapped", "Elsewhere")),
        ("Circle", None),
        ("Nobody", None),
    ],
)
def test_defaults_are_read_in_the_source_if_it_tells_them(tmp_path, monkeypatch, name, found):
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert registry_source.defaults(f"ours:{name}") == found
    assert "ours" not in sys.modules


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("nowhere", []),
        ("ice_glyphs", ["loss=nowhere"]),
        ("ice_glyphs", ["seed=x"]),
        ("ice_glyphs", ["sead=1"]),
        ("ice_glyphs", ["seed"]),
        ("ice_glyphs", ["loss=pml.NTXentLoss"]),
    ],
)
def test_nothing_is_guessed_where_something_is_wrong_or_unclear(source, overrides):
    assert loading.guess(source, overrides) is None


# ---- what is refused


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["id"])
def test_malformed(case):
    for name, text in {"x.yaml": case["text"], **case.get("files", {})}.items():
        write(name, text)
    lines = complaints("x.yaml", *case.get("overrides", []))
    assert len(lines) == len(case["expected"]), lines
    for line, beginning in zip(lines, case["expected"], strict=True):
        assert line.startswith(beginning), line
        assert line.isprintable()


def test_the_table_is_large_and_without_repeats():
    ids = [case["id"] for case in TABLE["cases"]]
    assert len(ids) == len(set(ids)) >= 36


def test_what_is_no_config_file():
    Path("latin.yaml").write_bytes("name: a\noutput: Läufe\n".encode("latin-1"))
    assert complaints("latin.yaml") == ["latin.yaml:2: is not UTF-8 text"]
    write("large.yaml", "# " + "x" * 1_000_000)
    assert complaints("large.yaml") == ["large.yaml: is larger than 1 MB: not a config"]
    Path("folder.yaml").mkdir()
    assert complaints("folder.yaml") == ["'folder.yaml' is a folder; name a file in it"]
    assert complaints("\0")[0].startswith("there is no config '\\x00'")
    assert complaints("x" * 5000)[0].startswith("there is no config")
    write("binary.yaml", "a: \x00")
    assert complaints("binary.yaml")[0].startswith("binary.yaml:1: not valid YAML: the character")


def test_a_file_that_may_not_be_read(monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zoo.support.files.open_regular", refuse)
    assert complaints("ok.yaml") == ["ok.yaml: cannot be read: Permission denied"]


def test_an_unknown_name_suggests_a_shipped_one():
    assert complaints("ice_glyps")[0].endswith("; did you mean ice_glyphs?")
    assert complaints("configs/ice_glyps.yaml")[0].endswith("; did you mean ice_glyphs?")
    assert complaints("zzz")[0].endswith("; `zoo config` lists what ships")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "!!str "])
def test_depth_is_bounded(opening):
    write("x.yaml", opening * 5000)
    assert len(complaints("x.yaml")) == 1


def test_depth_through_aliases_is_bounded():
    lines = ["- &a0 " + "[" * 40 + "]" * 40]
    lines += [f"- &a{i} " + "[" * 40 + f"*a{i - 1}" + "]" * 40 for i in range(1, 20)]
    write("x.yaml", "a:\n" + "\n".join(lines))
    assert "nested more than 50 deep" in complaints("x.yaml")[0]


def test_number_of_values_is_bounded():
    write("x.yaml", "a: [" + "1," * 300_000 + "]")
    assert "more than 10,000 values" in complaints("x.yaml")[0]


def test_a_number_of_too_many_digits():
    write("x.yaml", "extends: ok.yaml\nseed: " + "9" * 5000)
    assert complaints("x.yaml") == [
        "x.yaml:2: seed: the number 99999999999999999999... is too long"
    ]


@pytest.mark.parametrize("number", ["0x" + "f" * 50_000, "0o" + "7" * 50_000, "9" * 50_000])
@pytest.mark.parametrize(
    "line",
    [
        "seed: {}",
        "name: {}",
        "loss: {{scale: {}}}",
        "evaluate: {{ks: [{}]}}",
        "sweep: {{loss.scale: [{}]}}",
    ],
)
def test_a_number_of_too_many_digits_in_any_base(line, number):
    said = complaints(write("x.yaml", f"extends: ok.yaml\n{line.format(number)}\n"))
    assert said[0].endswith(f": the number {number[:20]}... is too long")


def test_numbers_of_too_many_digits_from_elsewhere():
    assert "must be a list" in complaints("ok.yaml", f"evaluate.ks.{'1' * 5000}=3")[0]
    with pytest.raises(UserError, match="scale: must be .*, not a number of thousands of digits"):
        zoo.build("losses", "ice", scale=16**5000)


def test_files_beside_each_other_are_bounded():
    write("x.yaml", "extends: [" + "ok.yaml, " * 3000 + "]")
    assert complaints("x.yaml") == ["x.yaml:1: extends: must be at most 100 files, not 3,000"]
    write("x.yaml", "extends: [" + "ok.yaml, " * 100 + "]")
    assert load("x.yaml").loss == load("ok.yaml").loss


def test_a_list_of_numbers_is_no_section():
    """Where Python 3.10 takes list[int] for a class, an unknown key was an error of Python."""
    assert messages._models(list[int] | None) == []
    assert messages._models(schema.Train | None) == [schema.Train]


def test_parents_are_bounded():
    for i in range(30):
        write(f"{i}.yaml", f"extends: [{i + 1}.yaml]")
    assert "more than 20 files extend each other: 0.yaml -> 1.yaml" in complaints("0.yaml")[0]


def test_many_ways_to_a_parent_cost_nothing():
    for i in range(1, 19):
        parents = ", ".join([f"{i - 1}.yaml" if i > 1 else "ok.yaml"] * 10)
        write(f"{i}.yaml", f"extends: [{parents}]")
    assert load("18.yaml").seed == 0


def test_a_message_is_bounded():
    write("x.yaml", "extends: ice_glyphs\n" + "".join(f"unknown{i}: 1\n" for i in range(300)))
    lines = complaints("x.yaml")
    assert len(lines) == 51
    assert lines[0].startswith("x.yaml:2: unknown0: unknown key")
    assert lines[-1] == "and 250 more"


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert complaints("ice_glyphs")[0].startswith("the working folder is gone")
    with pytest.raises(UserError, match="the working folder is gone"):
        loading.guess("ice_glyphs")


def test_a_name_from_the_file_must_name_a_folder():
    write("my config.yaml", TABLE["ok.yaml"].replace("name: fine\n", ""))
    assert complaints("my config.yaml")[0].startswith("my config.yaml:1: name: must be letters")


@pytest.mark.parametrize("name", ["..", ".hidden", "-rf", "a/b", "a\n", "é", "", "x" * 101])
def test_unsafe_names(name):
    write("x.yaml", f"extends: ok.yaml\nname: {json.dumps(name)}")
    assert complaints("x.yaml")[0].startswith("x.yaml:2: name: must ")


def test_an_override_cannot_steer_a_terminal():
    assert complaints("ok.yaml", "\x1b[31m=1\n2")[0].startswith("command line: \\x1b[31m=1\\n2: ")


def test_a_broken_component_takes_one_line(components):
    @zoo.register("losses", "broken")
    class Broken:
        def __init__(self, a: float) -> None: ...

    registry_components._registered["losses", "broken"] = registry_components._Claim(
        registry_components.EntryPoint("broken", "nowhere:Broken", "zoo.losses"), "nobody 1.0"
    )
    (line,) = complaints("ok.yaml", "loss=broken")
    assert line.startswith("command line: loss=broken: loss.name: 'broken' of nobody 1.0 is broken")


def test_types_are_said_in_words(components):
    @zoo.register("miners", "wordy")
    class Wordy:
        def __init__(
            self,
            a: float | None = None,
            b: Literal["hard", "easy"] | None = None,
            c: str = "",
            d: tuple[float, float] = (0, 1),
        ) -> None: ...

    assert complaints("ok.yaml", "miner={name: wordy, a: x, b: hrd, c: 1, d: 2}") == [
        "command line: miner={name: wordy, a: x, b: hrd, c: 1, d: 2}: " + said
        for said in (
            "miner.a: must be a number or null, not 'x'",
            "miner.b: must be one of hard, easy, null, not 'hrd'; did you mean hard?",
            "miner.c: must be text, not 1; put it in quotes",
            "miner.d: must be tuple[float, float], not 2",
        )
    ]


# ---- YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-1e+3", -1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("+12", 12),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("off", "off"),
        ("N", "N"),
        ("~", None),
        ("", None),
        ("null", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("=", "="),
        ("[1, {a: no}]", [1, {"a": "no"}]),
        ("&a [x, [y]]", ["x", ["y"]]),
    ],
)
def test_scalars_of_yaml_1_2(text, value):
    problems: list[support_yaml.Problem] = []
    node = support_yaml.parse(text, "x", problems)
    assert problems == []
    assert node is not None
    assert node.plain() == value
    assert type(node.plain()) is type(value)


TRICKY = [
    *(
        "1e-3",
        "0o17",
        "1_000",
        "yes",
        "No",
        "null",
        "~",
        "",
        " x ",
        "12:30",
        "2024-01-31",
        "<<",
        "=",
    ),
    *(
        "a: b",
        "# c",
        "- d",
        "é\U0001f600",
        "two\nlines",
        "\x1b[31m",
        "x" * 300,
        "w " * 100,
        "'",
        '"',
    ),
    *(1e-05, 1e22, 5e-324, 0.1 + 0.2, -0.0, math.inf, 10**30, True, False, None, 0, 64.0),
]


def test_what_is_written_reads_the_same():
    data = {"tricky": TRICKY, "map": {"a": [[]], "b": {}}, "keys": {1: 2, "1": 3, "no": 4}}
    problems: list[support_yaml.Problem] = []
    node = support_yaml.parse(support_yaml.dump(data), "x", problems)
    assert problems == []
    assert node is not None
    assert repr(node.plain()) == repr(data)
    assert repr(yaml.safe_load(support_yaml.dump(data))) == repr(data)


def test_aliases_are_values():
    write("x.yaml", "extends: ok.yaml\ntrain: &n {iterations: 7}\nevaluate: {ks: &k [1, 2]}\n")
    assert load("x.yaml").train.iterations == 7


# ---- extends and overrides


def test_extends_merges_maps_and_replaces_lists():
    write("base/a.yaml", "extends: ../ok.yaml\noptimizer: {momentum: 0.5}\nevaluate: {ks: [1, 2]}")
    write("x.yaml", "extends: base/a.yaml\noptimizer: {momentum: 0.8}\nevaluate: {ks: [10]}")
    got = load("x.yaml")
    assert got.optimizer is not None
    assert (got.optimizer.name, got.optimizer.lr) == ("sgd", 0.1)
    assert got.optimizer.model_dump()["momentum"] == 0.8
    assert got.evaluate.ks == [10]
    assert got.name == "fine"


def test_of_several_parents_the_later_wins():
    write("a.yaml", "seed: 1\noutput: a")
    write("b.yaml", "seed: 2")
    write("x.yaml", "extends: [ok.yaml, a.yaml, b.yaml]")
    assert (load("x.yaml").seed, load("x.yaml").output) == (2, "a")


def test_a_shipped_config_can_be_extended_from_anywhere():
    write("x.yaml", "extends: ice_glyphs\nloss: {scale: 3}")
    assert load("x.yaml").loss == load("ice_glyphs", ["loss.scale=3"]).loss
    write("x.yaml", "extends: base/glyphs.yaml\nloss: ice")
    assert load("x.yaml").dataset.name == "glyphs"


def test_another_component_replaces_the_inherited_one():
    write(
        "x.yaml",
        "extends: ok.yaml\noptimizer: {name: adam, lr: 1}\nsampler: {name: shuffle, batch_size: 4}",
    )
    got = load("x.yaml")
    assert got.sampler is not None
    assert got.sampler.arguments == {"batch_size": 4}
    assert got.optimizer is not None
    assert got.optimizer.lr == 1
    write("y.yaml", "extends: ok.yaml\nloss: pml.NTXentLoss")
    loss = load("y.yaml").loss
    assert loss is not None
    assert (loss.name, loss.arguments["temperature"]) == ("pml.NTXentLoss", 0.07)
    assert "scale" not in loss.arguments


def test_the_same_component_keeps_the_inherited_arguments():
    write("x.yaml", "extends: ok.yaml\nloss: ice\nsampler: {per_class: 4}")
    got = load("x.yaml")
    assert got.loss == load("ok.yaml").loss
    assert got.sampler == ComponentSpec(name="m_per_class", classes=8, per_class=4)


def test_null_removes_what_is_optional():
    write("a.yaml", "extends: ok.yaml\nminer: {name: pml.MultiSimilarityMiner, epsilon: 0.2}")
    write("x.yaml", "extends: a.yaml\nminer: null")
    assert load("a.yaml").miner == ComponentSpec(name="pml.MultiSimilarityMiner", epsilon=0.2)
    assert load("x.yaml").miner is None
    assert load("a.yaml", ["miner="]).miner is None


def test_overrides_come_last_and_in_any_order():
    given = ["loss.temperature=0.1", "loss=pml.NTXentLoss", "optimizer.lr=1e-3", "seed=4"]
    got = load("ok.yaml", given)
    assert got == load("ok.yaml", given[::-1])
    assert got.loss is not None
    assert (got.loss.name, got.loss.arguments["temperature"]) == ("pml.NTXentLoss", 0.1)
    assert got.optimizer is not None
    assert (got.optimizer.lr, got.seed, got.run_name()[-3:]) == (1e-3, 4, "-s4")


def test_overrides_reach_everything():
    got = load(
        "ok.yaml", ["evaluate.ks=[1, 10, 100]", "paper={table: a, row: b, dataset: c, recall: {}}"]
    )
    assert got.evaluate.ks == [1, 10, 100]
    got = load("ok.yaml", ["paper={table: a, row: b, dataset: c}", "paper.recall.10=3"])
    assert got.paper is not None
    assert got.paper.recall == {10: 3.0}


# ---- the config


def test_a_minimal_config():
    write("tiny.yaml", "dataset: glyphs\nmodel: {backbone: convnet}\ntrain: {iterations: 0}")
    got = load("tiny.yaml")
    assert (got.name, got.loss, got.sampler, got.optimizer) == ("tiny", None, None, None)
    assert (got.schedule.name, got.evaluate.ks, got.images.crop) == ("constant", [1, 2, 4, 8], None)
    assert got.model.embedding_size == 512


def test_defaults_of_components_are_filled_in(components):
    @zoo.register("samplers", "plain")
    class Plain:
        def __init__(
            self,
            labels: Any,
            size: int = 3,
            kind: str = "a",
            seed: int = 0,
            none: float | None = None,
            wrong: int = "x",  # type: ignore[assignment]
        ) -> None: ...

    got = load("ok.yaml", ["sampler={name: plain, wrong: 3, kind: b}"])
    assert got.sampler is not None
    assert list(got.sampler.arguments.items()) == [("size", 3), ("kind", "b"), ("wrong", 3)]
    got = load("ok.yaml", ["sampler=plain"])
    assert got.sampler == ComponentSpec(name="plain")


@pytest.mark.parametrize("kind", ["losses", "miners"])
@pytest.mark.slow
def test_filling_in_changes_no_pml_class(kind):
    runtime = {"num_classes": 4, "embedding_size": 8} if kind == "losses" else {}
    built = 0
    for name in registry_components.pml_names(kind):
        filled = loading._with_defaults(kind, {"name": name})
        assert not set(filled) & set(runtime)
        if not registry_components.problems(kind, name, {}):
            one = registry_components.assemble(kind, name, {}, runtime)
            del filled["name"]
            assert settings(one) == settings(
                registry_components.assemble(kind, name, filled, runtime)
            ), name
            built += 1
    assert built > 5


def settings(module: Any) -> list[Any]:
    """Return the modules of a PML object and all that is a plain value in them."""
    return [
        (
            name,
            type(part),
            {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)},
        )
        for name, part in module.named_modules()
    ]


def test_it_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load("ok.yaml").seed = 3


def test_resolved_is_plain_and_in_order():
    got = load("ok.yaml").resolved()
    assert json.loads(json.dumps(got)) == got
    assert list(got) == list(Config.model_fields)
    assert list(got["optimizer"])[:2] == ["name", "lr"]
    assert next(iter(got["loss"])) == "name"


@pytest.mark.parametrize("name", MOST_SLOW)
def test_round_trip_of_shipped_configs(name):
    for variant in variants(name):
        got = variant.config
        write("again.yaml", dump(got))
        again = load("again.yaml")
        assert again == got
        assert (again.run_name(), dump(again)) == (got.run_name(), dump(got))


def test_round_trip_of_the_unusual():
    paper = "paper={table: '3', row: ICE, dataset: SOP, recall: {1: 77.3, 10: 90, 100: null}}"
    output = json.dumps("1e-3 é: \n# no")
    got = load("ok.yaml", ["optimizer.lr=1e-05", f"output={output}", paper, "train.clip_norm=1e22"])
    write("again.yaml", dump(got))
    assert load("again.yaml") == got
    assert load("again.yaml").output == "1e-3 é: \n# no"


def test_digest_ignores_what_does_not_matter():
    digest = load("ok.yaml").digest()
    assert len(digest) == 8
    assert int(digest, 16) >= 0
    for override in (
        *("name=other", "seed=3", "device=cpu", "output=elsewhere", "loss.scale=64.0"),
        *("train.workers=3", "train.log_every=7", "train.checkpoint_every=7"),
        *("evaluate.batch_size=3", "evaluate.backend=faiss", "images.cache=true"),
        "loss.reweight=true",
        "paper={table: a, row: b, dataset: c, recall: {1: 3}}",
    ):
        assert load("ok.yaml", [override]).digest() == digest, override


def test_digest_tells_experiments_apart():
    overrides = [
        *("loss.scale=32", "loss.reweight=false", "loss=pml.NTXentLoss", "train.iterations=11"),
        *("optimizer.lr=0.2", "images.mirror=true", "model.embedding_size=64", "schedule=cosine"),
        *(
            "evaluate.ks=[1]",
            "evaluate.every=5",
            "evaluate.validation=0.2",
            "evaluate.validation=0.3",
            "train.precision=bf16",
            "miner=pml.BatchHardMiner",
        ),
        *("sampler.per_class=3", "model.freeze=trunk", "dataset={name: image_folder, root: a}"),
    ]
    digests = {load("ok.yaml", [override]).digest() for override in overrides}
    assert len(digests | {load("ok.yaml").digest()}) == len(overrides) + 1


def test_digest_is_the_same_everywhere():
    """Guards the names of run folders: a change here orphans the runs that people have."""
    got = Config(
        name="x",
        dataset=ComponentSpec(name="d", root="r"),
        model=schema.Model(backbone=ComponentSpec(name="b")),
        train=schema.Train(iterations=0),
    )
    assert got.run_name() == "x-8de3e5f8-s0"


def test_it_can_be_made_without_a_file():
    with pytest.raises(ValueError, match="3 iterations of training need one"):
        Config.model_validate(
            {
                "name": "x",
                "dataset": {"name": "d"},
                "model": {"backbone": {"name": "b"}},
                "train": {"iterations": 3},
            }
        )


def test_schema_describes_every_field():
    sections = [loading.schema(), *loading.schema()["$defs"].values()]
    missing = [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section.get("properties", {}).items()
        if "description" not in field
    ]
    assert missing == []


def test_torch_is_not_imported():
    code = "import zoo.config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what ships


def test_shipped_configs():
    paths = [path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "tables"]
    found = {path.relative_to(CONFIGS).with_suffix("").as_posix() for path in paths}
    assert set(shipped()) == {name for name in found if not name.startswith("base/")}
    assert len(shipped()) == len(found) - 6  # those of base/
    assert len(shipped()) >= 2 * len(zoo.names("losses")) + 46  # of Table 3, ablations and levels


@pytest.mark.parametrize("name", MOST_SLOW)
def test_shipped_config_loads_by_any_of_its_names(name):
    needed = NEEDED.get(name, [])
    got = variants(name)
    assert {variant.config.name for variant in got} == {name.rpartition("/")[2]}
    assert load_all(f"{name}.yaml", needed) == load_all(f"configs/{name}.yaml", needed) == got
    assert load_all(CONFIGS / f"{name}.yaml", needed) == got


@pytest.mark.parametrize("name", shipped())
def test_shipped_config_opens_with_its_command(name):
    text = (CONFIGS / f"{name}.yaml").read_text("utf-8")
    assert text.startswith(f"# zoo run configs/{name}.yaml")


def test_what_the_user_has_to_give_is_said():
    """Not in a file of ours, which nobody should change."""
    missing = "dataset.root: missing argument of image_folder; give it"
    assert complaints("ice_folder") == [f"ice_folder: {missing} as dataset.root=FOLDER"]
    source = write("mine.yaml", "extends: ice_folder\n")
    wanted = [f"mine.yaml: {missing} in the file, or as dataset.root=FOLDER"]
    assert complaints(source) == wanted


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("optimizer.learning_rate=1", "optimizer.lr (learning rate of the backbone)"),
        ("learning_rate=1", "optimizer.lr (learning rate of the backbone)"),
        ("optimizer.wd=1", "optimizer.weight_decay (weight decay)"),
        ("train.epochs=1", "train.iterations (number of training steps"),
        ("batch_size=3", "sampler.classes, sampler.per_class or evaluate.batch_size?"),
        ("model.dim=3", "model.embedding_size (length of the embedding"),
        ("train.num_workers=3", "train.workers (processes that read images"),
        ("train.amp=true", "train.precision (number format"),
        ("lr_scheduler=x", "schedule?"),
        ("random_seed=3", "seed?"),
    ],
)
def test_words_of_other_libraries_are_understood(setting, meant):
    (line,) = complaints("ice_glyphs", setting)
    assert f"unknown key; did you mean {meant}" in line


def test_words_of_other_libraries_stand_for_settings():
    for meant in synonyms._ELSEWHERE:
        section, _, key = meant.partition(".")
        assert section in schema.ConfigFile.model_fields, meant
        component = (section,) in schema.COMPONENTS
        assert not key or component or meant in messages.settings_named(key), meant


def test_what_only_the_run_sets_is_not_suggested():
    lines = complaints("ice_glyphs", "sampler=shuffle", "sampler.classes=4")
    assert "unknown argument of shuffle; it takes batch_size" in lines[0]


def test_a_file_here_comes_before_a_shipped_one():
    write("configs/ice_glyphs.yaml", TABLE["ok.yaml"])
    assert load("configs/ice_glyphs.yaml").name == "fine"


def test_clustering_is_by_cosines():
    (line,) = complaints("ice_glyphs", "model.space=euclidean", "evaluate.measures=[map_at_r, nmi]")
    assert line.endswith("nmi cluster by cosines: leave out, or set model.space=null")


@pytest.mark.parametrize(
    ("spaces", "said"),
    [
        ("hyperbolic", "mine declares spaces = 'hyperbolic'; it must be a tuple of their names"),
        (("hyperbolic", "euclidean"), "set model.space=hyperbolic or euclidean"),
    ],
)
def test_the_spaces_that_a_loss_declares(components, spaces, said):
    class Mine(zoo.losses.ice.ICELoss):
        pass

    Mine.spaces = spaces
    zoo.register("losses", "mine")(Mine)
    (line,) = complaints("ice_glyphs", "loss=mine")
    assert said in line
