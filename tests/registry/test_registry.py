"""Names, claims and arguments: what the registry promises."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import zoo
from zoo import UserError
from zoo.registry import components
from zoo.registry import source as registry_source

HEAVY = ("torch", "torchvision", "pytorch_metric_learning", "matplotlib", "sklearn")


def run_python(code, *, path=None):
    environment = {"PYTHONPATH": str(path)} if path else {}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout


@pytest.mark.parametrize(
    "code",
    [
        "import zoo",
        "import zoo; [zoo.names(k) for k in zoo.registry.KINDS]",
        "import zoo.cli.main as c, contextlib, io, sys; sys.argv = ['zoo', 'list', '--all']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): c.main()",
        "import zoo.cli.main as c, contextlib, io, sys; sys.argv = ['zoo', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): c.main()",
    ],
    ids=["import", "names", "list", "help"],
)
def test_nothing_heavy_is_imported(code):
    loaded = json.loads(
        run_python(f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))")
    )
    assert "zoo" in loaded
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("kind", components.KINDS)
def test_every_builtin_is_whole(kind):
    for name in components.names(kind):
        found = components.describe(kind, name)
        assert found.broken is None
        assert found.summary.endswith(".")
        assert found.distribution == "metric-zoo"
        assert components.component(kind, name).summary == found.summary


def test_every_pml_class_is_reachable_and_none_is_listed_by_hand():
    for kind in ("losses", "miners"):
        module = importlib.import_module(f"pytorch_metric_learning.{kind}")
        public = {
            f"pml.{name}"
            for name, value in vars(module).items()
            if isinstance(value, type) and not any(w in name for w in ("Base", "Generic", "Mixin"))
        }
        assert set(components.pml_names(kind)) == public
        for name in public:
            assert components.describe(kind, name).broken is None


def test_unknown_names_are_met_with_near_ones():
    with pytest.raises(UserError, match="no loss named 'icee'; did you mean ice?"):
        zoo.build("losses", "icee")
    with pytest.raises(UserError, match="did you mean pml.NTXentLoss?"):
        zoo.build("losses", "pml.NTXnetLoss")
    with pytest.raises(UserError, match="`zoo list losses` shows what there is"):
        zoo.build("losses", "qqqqqqq")
    with pytest.raises(UserError, match="no kind of component named 'loss'; did you mean losses?"):
        zoo.build("loss", "ice")
    with pytest.raises(UserError, match="torchvision has no backbone named 'resnet5'; did you"):
        zoo.build("backbones", "torchvision.resnet5")
    with pytest.raises(UserError, match="is a family"):
        zoo.build("backbones", "torchvision.*")
    for variant in ("", "resnet5", "*x"):
        with pytest.raises(UserError, match="torchvision has no backbone named"):
            zoo.describe("backbones", f"torchvision.{variant}")


@pytest.mark.parametrize("name", [None, 3, b"ice", ["ice"], {"name": "ice"}])
@pytest.mark.parametrize("ask", [zoo.build, zoo.describe])
def test_names_are_text(ask, name):
    with pytest.raises(UserError, match="names of losses are text, not"):
        ask("losses", name)


def test_what_a_constructor_did_not_check_is_told_in_one_line():
    with pytest.raises(UserError) as error:
        zoo.build("losses", "pml.SoftTripleLoss", num_classes=3, embedding_size=3, gamma=0.0)
    assert "building pml.SoftTripleLoss failed: ZeroDivisionError" in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


ARGUMENTS = [
    ("ice", {"scael": 3}, "scael: unknown argument of ice; did you mean scale?"),
    ("ice", {"scale": "64"}, "scale: must be a number, not '64', which is text"),
    ("ice", {"scale": True}, "scale: must be a number, not true"),
    ("ice", {"reweight": 1}, "reweight: must be true or false, not 1"),
    ("ice", {"block": 1.5}, "block: must be a whole number or null, not 1.5"),
    ("ice", {"scale": 1e30}, "scale: must be 0 or a number of magnitude 1e-12 to 1e9, not 1e+30"),
    (
        "circle",
        {"gamma": 10**400},
        "gamma: must be 0 or a number of magnitude 1e-12 to 1e9, not 1000",
    ),
    (
        "contrastive",
        {"margin": float("nan")},
        "margin: must be 0 or a number of magnitude 1e-12 to 1e9",
    ),
    (
        "drpr",
        {"temperature": 1e-45},
        "temperature: must be 0 or a number of magnitude 1e-12 to 1e9",
    ),
    ("cce", {"num_classes": 0, "embedding_size": 4}, "num_classes: must be at least 1, not 0"),
    ("pml.NTXentLoss", {"temperature": 1e39}, "temperature: must be 0 or a number of"),
    ("pml.NTXentLoss", {"temprature": 0.1}, "temprature: unknown argument of pml.NTXentLoss; did"),
    ("pml.NTXentLoss", {"mat_based_loss": True}, "mat_based_loss: unknown argument"),
    ("pml.ArcFaceLoss", {"num_classes": 3}, "embedding_size: missing argument of pml.ArcFaceLoss"),
    ("pml.ArcFaceLoss", {"num_classes": 3, "embedding_size": 2, "margin": "x"}, "must be a number"),
    ("pml.SubCenterArcFaceLoss", {}, "num_classes: missing argument"),
    ("pml.NTXentLoss", {"distance": {"name": "pml.LpDistance", "q": 1}}, "distance.q: unknown"),
    ("pml.NTXentLoss", {"distanc": {"name": "pml.LpDistance"}}, "distanc: unknown argument"),
    ("pml.CrossBatchMemory", {"embedding_size": 4, "loss": {"name": "icee"}}, "did you mean ice?"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), ARGUMENTS)
def test_wrong_arguments_are_caught_before_anything_is_built(name, arguments, message):
    with pytest.raises(UserError) as error:
        zoo.build("losses", name, **arguments)
    assert message in str(error.value)


def test_all_wrong_arguments_are_reported_together():
    with pytest.raises(UserError) as error:
        zoo.build("losses", "pml.ArcFaceLoss", marign=1, scale="x")
    assert len(str(error.value).splitlines()) == 4


def test_the_runtime_supplies_only_what_is_declared():
    runtime = {"num_classes": 5, "embedding_size": 8}
    assert components.assemble("losses", "ice", {"scale": 3}, runtime).scale == 3
    assert components.assemble("losses", "pml.ArcFaceLoss", {}, runtime).W.shape == (8, 5)
    own = components.assemble("losses", "pml.ArcFaceLoss", {"num_classes": 7}, runtime)
    assert own.W.shape == (8, 7)
    for wrong in ({"num_classes": 4}, {"embedding_size": 7}, {"embedding_size": 9}):
        with pytest.raises(UserError, match="but the experiment has"):
            components.assemble("losses", "pml.ArcFaceLoss", wrong, runtime)


def test_nested_components_are_built():
    loss = zoo.build(
        "losses",
        "pml.CrossBatchMemory",
        embedding_size=8,
        loss={"name": "pml.NTXentLoss", "distance": {"name": "pml.LpDistance", "p": 1}},
        miner={"name": "pml.MultiSimilarityMiner", "epsilon": 0.2},
    )
    assert loss.loss.distance.p == 1
    assert loss.miner.epsilon == 0.2


@pytest.fixture
def clean(monkeypatch):
    monkeypatch.setattr(components, "_registered", {})


@pytest.mark.usefixtures("clean")
def test_register_in_a_notebook():
    @zoo.register("losses", "mine")
    class Mine:
        """A loss of my own."""

        paper = "Me 2026, Mine"

        def __init__(self, weight: float = 1.0):
            self.weight = weight

    assert "mine" in zoo.names("losses")
    assert zoo.build("losses", "mine", weight=2).weight == 2
    found = zoo.describe("losses", "mine")
    assert (found.summary, found.paper) == ("A loss of my own.", "Me 2026, Mine")
    zoo.register("losses", "mine")(Mine)  # the cell is run again
    for taken in ("ice", "mine", "pml.NTXentLoss"):
        with pytest.raises(UserError, match="belongs to"):
            zoo.register("losses", taken)(dict)


def claim(monkeypatch, kind, *entries):
    """Let other distributions claim names."""
    own = components._installed(kind)
    extra = tuple(
        (name, components._Claim(EntryPoint(name, value, f"zoo.{kind}"), owner))
        for name, value, owner in entries
    )
    monkeypatch.setattr(components, "_installed", lambda k: own + extra if k == kind else ())


def test_a_name_claimed_twice_is_an_error_for_that_name_only(monkeypatch):
    claim(monkeypatch, "losses", ("ice", "their:ICE", "their-zoo 1.2"))
    with pytest.raises(UserError, match=r"claimed by metric-zoo .* and their-zoo 1.2 \(their:ICE"):
        zoo.build("losses", "ice")
    assert "claimed by" in components.component("losses", "ice").broken
    assert zoo.build("losses", "pml.NTXentLoss")


BROKEN = {
    "no_module": ("nowhere_at_all:Loss", "", "no module nowhere_at_all"),
    "no_class": ("plug:Other", "class Loss: ...", "plug does not define Other"),
    "syntax": ("plug:Loss", "class Loss(:", "SyntaxError"),
    "dependency": ("plug:Loss", "import not_installed_x\nclass Loss: ...", "not_installed_x"),
    "raises": ("plug:Loss", "raise RuntimeError('boom')\nclass Loss: ...", "boom"),
    "module": ("plug", "class Loss: ...", "names a module, not a class; it should be plug:<Class>"),
}


@pytest.fixture
def plug(monkeypatch, tmp_path):
    """Return a function that writes the module ``plug`` and forgets an earlier one."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source, module="plug"):
        for name in ("plug", "inner"):
            sys.modules.pop(name, None)
        (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    for name in ("plug", "inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("value", "source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason(monkeypatch, plug, value, source, reason):
    plug(source)
    claim(monkeypatch, "losses", ("bad", value, "bad-plugin 0.1"))
    assert "bad" in zoo.names("losses")
    assert reason in components.component("losses", "bad").broken
    assert reason in components.describe("losses", "bad").broken
    assert "plug" not in sys.modules
    with pytest.raises(UserError, match=r"bad-plugin 0.1 is broken"):
        zoo.build("losses", "bad")
    assert zoo.build("losses", "ice")


def test_what_only_breaks_when_used_is_told_then(monkeypatch, plug):
    plug("x = 1 / 0\nclass Loss: ...")
    claim(monkeypatch, "losses", ("late", "plug:Loss", "late-plugin 0.1"))
    assert components.component("losses", "late").broken is None
    assert "ZeroDivisionError" in zoo.describe("losses", "late").broken
    with pytest.raises(UserError, match="ZeroDivisionError"):
        zoo.build("losses", "late")


def test_a_plugin_that_ends_the_process_is_broken(monkeypatch, plug):
    plug("import sys\nsys.exit()\nclass Loss: ...")
    claim(monkeypatch, "losses", ("quits", "plug:Loss", "quitter 0.1"))
    assert "SystemExit" in zoo.describe("losses", "quits").broken
    plug("import sys\nclass Loss:\n    def __init__(self): sys.exit()")
    with pytest.raises(UserError, match="building quits failed: SystemExit"):
        zoo.build("losses", "quits")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("...", "its class has no variants(), a static method that lists the members"),
        ("variants = 3", "its variants() cannot be listed: TypeError"),
        ("def variants(): exit()", "its variants() cannot be listed: SystemExit"),
    ],
)
def test_a_family_that_does_not_list_its_members_is_broken(monkeypatch, plug, body, reason):
    plug(f"class Family:\n    {body}")
    claim(monkeypatch, "losses", ("odd.*", "plug:Family", "odd 0.1"))
    for name in ("odd.*", "odd.b"):
        assert reason in zoo.describe("losses", name).broken
    with pytest.raises(UserError, match=re.escape("'odd.*' of odd 0.1 is broken")):
        zoo.build("losses", "odd.b")
    with pytest.raises(UserError, match=r"did you mean ice\?"):
        zoo.build("losses", "icee")


@pytest.mark.parametrize(
    "source", ["from inner import Loss", "from inner import *", "import inner\nLoss = inner.Loss"]
)
def test_reexports_and_computed_names_are_not_called_broken(monkeypatch, plug, source):
    plug("class Loss:\n    'A loss.'", "inner")
    plug(source)
    claim(monkeypatch, "losses", ("re", "plug:Loss", "re 0.1"))
    assert components.component("losses", "re").broken is None
    assert zoo.build("losses", "re") is not None


def test_every_loss_says_what_the_tables_tell():
    """In its own body: a listing reads the source of one file and imports nothing."""
    kinds = {"pair", "triplet", "list", "proxy", "classifier", "clustering"}
    for name in zoo.names("losses"):
        facts = components.component("losses", name).facts
        assert re.search(r"\b(19|20)\d\d, ", facts["paper"]), name
        assert facts["kind"] in kinds, name
        assert facts["cost"], name
        assert facts["sampler"] in zoo.names("samplers"), name


BY_NAME = (
    components.component,
    components.load,
    components.parameters,
    components.is_there,
    components.plugin_of,
)


@pytest.mark.parametrize("name", [None, 5, ["ice"]])
@pytest.mark.parametrize("ask", [*BY_NAME, zoo.build, zoo.describe])
def test_a_name_is_text(ask, name):
    with pytest.raises(UserError, match="names of losses are text, not "):
        ask("losses", name)


@pytest.mark.parametrize("kind", [None, 5, b"losses", [], int])
def test_a_kind_is_one_of_five(kind):
    for ask in (zoo.build, zoo.describe):
        with pytest.raises(UserError, match="kind must be losses, miners"):
            ask(kind, "ice")
    for ask in (*BY_NAME, zoo.build, zoo.describe):
        with pytest.raises(UserError, match="kind must be losses, miners"):
            ask(kind, None)
    for ask in (zoo.names, components.pml_names):
        with pytest.raises(UserError, match="kind must be losses, miners"):
            ask(kind)


@pytest.mark.parametrize(
    "name", ["", " ", "two words", "a\n", "\x1b[31m", "a:b", "../x", ".", "a.", None, 5, int]
)
def test_what_is_no_name_is_not_registered(name):
    with pytest.raises(UserError, match="is not a name for one of losses"):
        zoo.register("losses", name)


@pytest.mark.parametrize("what", [None, 5, "ice", object(), lambda: None])
def test_only_classes_are_registered(what):
    with pytest.raises(UserError, match="losses: mine must be a class, not"):
        zoo.register("losses", "mine")(what)


def test_summaries_are_sentences_or_names_of_classes():
    for kind in components.KINDS:
        for name in [*components.names(kind), *components.pml_names(kind)]:
            summary = components.component(kind, name).summary
            assert re.match(r"\S.*[^\s:]$", summary), (kind, name, summary)
            assert not re.match(r"[\w #]+:$|https?://\S+$", summary), (kind, name, summary)


@pytest.mark.parametrize(
    ("documentation", "summary"),
    [
        ("Pull together.\n\nMore of it.", "Pull together."),
        ("Args:\n    margin: how far", "Mine"),
        ("", "Mine"),
        ("Issue #411:\n\nA common use case.", "A common use case."),
        ("Paper:\nhttps://a.b/c\nA loss of pairs\nthat are far.", "A loss of pairs that are far."),
        ("=====\nTitle\n=====", "Title"),
        ("Takes triplets\n    Args:\n        margin: how far", "Takes triplets"),
    ],
)
def test_a_summary_is_the_first_sentence(documentation, summary):
    assert registry_source.summary_of(documentation, "Mine") == summary
