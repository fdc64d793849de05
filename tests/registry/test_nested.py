"""Components within components, and what of pytorch-metric-learning can be trained with."""

from __future__ import annotations

import io
import re

import pytest
import torch
from places import DOCS
from rich.console import Console
from small_run import small_run

import zoo
from zoo import UserError, config, leaderboard
from zoo.config import editor
from zoo.losses._memory import CrossBatchMemory
from zoo.registry import components
from zoo.training import learning

SHORT = ["model.embedding_size=16", "train.iterations=3", "device=cpu"]
MULTIPLE = "{name: pml.MultipleLosses, losses: [ice, {name: pml.NTXentLoss, temperature: 0.1}]"
# What those need that cannot do without arguments.
ARGUMENTS = {
    "pml.CrossBatchMemory": ["loss.loss=ice"],
    "pml.MultipleLosses": ["loss.losses=[ice, {name: pml.NTXentLoss, temperature: 0.1}]"],
    "pml.RankedListLoss": ["loss.margin=0.4", "loss.Tn=10"],
    "pml.P2SGradLoss": ["loss.descriptors_dim=16"],
    "pml.ManifoldLoss": ["loss.l=16"],
    "pml.SelfSupervisedLoss": ["loss.loss=pml.NTXentLoss"],
}
# Which cannot be trained with, and what is said of it.
CANNOT = {
    "pml.DynamicSoftMarginLoss": "backward through the graph a second time",
    "pml.ManifoldLoss": "labels are ref_labels are not supported",
    "pml.SelfSupervisedLoss": "its second argument is ref_emb",
    "pml.VICRegLoss": "labels are ref_labels are not supported",
}
NEVER_PACKAGED = "pml.EmbeddingsAlreadyPackagedAsTriplets"


def settings_of(loss):
    return [f"loss={loss}", *ARGUMENTS.get(loss, [])]


def complaint(*settings):
    with pytest.raises(UserError) as error:
        config.load("ice_glyphs", [*SHORT, *settings])
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", components.pml_names("losses"))
def test_every_loss_of_pml_can_be_trained_with_or_says_why_not(name):
    if name in CANNOT:
        (line,) = complaint(*settings_of(name)).splitlines()
        assert line.startswith("command line: loss=")
        assert CANNOT[name] in line
        return
    spec = config.load("ice_glyphs", [*SHORT, *settings_of(name)]).loss
    sizes = {"num_classes": 4, "embedding_size": 16}
    loss = components.assemble("losses", name, spec.arguments, sizes)
    for _ in range(3):
        x = torch.randn(12, 16, requires_grad=True)
        loss(x, torch.arange(4).repeat_interleave(3)).backward()
        assert x.grad.isfinite().all()


def test_the_questions_say_which_cannot_be_trained_with():
    page = (DOCS / "faq.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in [*CANNOT, NEVER_PACKAGED])
    if len(components.pml_names("losses")) == 38:  # of the newest version
        assert f"Of its 38 losses, {38 - len(CANNOT)} can be trained with" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*components.pml_names("losses")} - {*CANNOT}))
def test_every_other_loss_of_pml_trains_a_run(tmp_path, name):
    settings = [text.replace("=16", "=8") for text in settings_of(name)]  # the embeddings' size
    assert (small_run(tmp_path, *settings) / "result.json").is_file()


@pytest.mark.parametrize("name", components.pml_names("miners"))
def test_every_miner_of_pml_mines_in_a_run_or_says_why_not(tmp_path, name):
    settings = ["loss=pml.TripletMarginLoss", f"miner={name}"]
    if name == NEVER_PACKAGED:  # by labels of a first batch, which a config does not have
        with pytest.raises(UserError, match=r"tried before training, gave images .* pair"):
            small_run(tmp_path, *settings)
        assert not [*(tmp_path / "runs").glob("*/config.yaml")]
    else:
        assert config.load("ice_glyphs", [*SHORT, *settings]).miner.name == name


def test_nested_components_by_name_and_map_with_what_the_run_supplies():
    sizes = {"num_classes": 5, "embedding_size": 8}
    loss = components.assemble(
        "losses",
        "pml.MultipleLosses",
        {
            "losses": ["ice", {"name": "pml.ArcFaceLoss", "distance": "CosineSimilarity"}],
            "miners": [None, "batch_hard"],
            "weights": [1, 0.5],
        },
        sizes,
    )
    assert loss.losses[1].W.shape == (8, 5)
    assert type(loss.miners[1]).__name__ == "BatchHardMiner"
    x = torch.randn(6, 8, requires_grad=True)
    loss(x, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    by_key = {"losses": {"a": "ice", "b": "cosface"}, "weights": {"a": 1, "b": 2}}
    assert set(components.assemble("losses", "pml.MultipleLosses", by_key, sizes).losses) == {*"ab"}
    centres = {"weight_regularizer": {"name": "SparseCentersRegularizer", "centers_per_class": 10}}
    assert components.assemble("losses", "pml.SoftTripleLoss", centres, sizes)


def test_an_object_that_is_built_already_stays_as_it_is():
    inner = zoo.build("losses", "ice", scale=3)
    assert zoo.build("losses", "pml.CrossBatchMemory", loss=inner, embedding_size=8).loss is inner


def test_a_memory_says_in_its_state_how_far_it_is_filled():
    memories = [CrossBatchMemory(zoo.build("losses", "ice"), 4, memory_size=8) for _ in range(2)]
    batches = [(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])) for _ in range(3)]
    for batch in batches[:2]:
        memories[0](*batch)
    memories[1].load_state_dict(memories[0].state_dict())
    assert memories[0](*batches[2]) == memories[1](*batches[2])


class OfBatches(torch.nn.Module):
    """A stranger's loss that says nothing of galleries."""


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (OfBatches(), "OfBatches: it does not declare a gallery"),
        (
            zoo.build("losses", "cce", num_classes=3, embedding_size=4),
            "CCELoss: it does not declare",
        ),
        (
            components.assemble("losses", "pml.FastAPLoss", {}, {}),
            "FastAPLoss: those that pytorch-metric-learning accepts",
        ),
    ],
)
def test_a_memory_refuses_a_loss_that_does_not_compare_with_one(loss, says):
    with pytest.raises(UserError, match=re.escape(says)):
        CrossBatchMemory(loss, 4)


def test_a_memory_of_less_than_a_batch_is_refused():
    memory = CrossBatchMemory(zoo.build("losses", "ice"), 4, memory_size=7)
    memory.check_batch(7, 4)  # a run asks before training
    with pytest.raises(UserError, match="a memory of 7 is smaller than a batch of 8 images"):
        memory.check_batch(8, 4)


def test_what_is_tried_before_training_changes_no_number_of_the_run(tmp_path, monkeypatch):
    losses = []
    settings = [
        "loss={name: pml.TripletMarginLoss, triplets_per_anchor: 3}",  # draws by NumPy
        "miner=distance_weighted",  # by torch
    ]
    for folder in ("tried", "untried"):
        (tmp_path / folder).mkdir()
        run = small_run(tmp_path / folder, *settings)
        losses.append((run / "metrics.jsonl").read_text())
        monkeypatch.setattr(learning, "_rehearse", lambda *_: None)
    assert losses[0] == losses[1]


FILE = """\
extends: ice_glyphs
train: {iterations: 3}
model: {embedding_size: 16}
loss:
  name: pml.CrossBatchMemory
  loss:
    name: pml.NTXentLoss
    distance: %s
  memory_size: 256
"""


@pytest.mark.parametrize(
    ("distance", "line"),
    [
        (
            "CosinSimilarity",
            "x.yaml:8: loss.loss.distance: there is no distance named 'CosinSimilarity'; did you "
            "mean CosineSimilarity?",
        ),
        (
            "{name: LpDistance, q: 2}",
            "x.yaml:8: loss.loss.distance.q: unknown argument of LpDistance; it takes ",
        ),
        (
            "5",
            "x.yaml:8: loss.loss.distance: must be a distance: its name, or a map with its name, "
            "not 5",
        ),
        (
            "{name: LpDistance, is_inverted: true}",
            "x.yaml:8: loss.loss.distance: building pml.LpDistance failed: AssertionError",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_line(tmp_path, monkeypatch, distance, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(FILE % distance)
    with pytest.raises(UserError) as error:
        config.load("x.yaml")
    assert str(error.value).startswith(line)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["loss=pml.CircleLoss", "loss.distance=LpDistance"], "requires the distance metric to be"),
        (["loss=pml.CrossBatchMemory", "loss.loss=cce"], "a memory of batches does not work with"),
        (["loss=pml.NTXentLoss", "loss.reducer=ThresholdReducer"], "At least one of low or high"),
        (["loss=pml.ArcFaceLoss", "loss.embedding_size=8"], "is 8, but the experiment has 16"),
        ([f"loss={MULTIPLE}, miners: [null, batch_hard]}}", "miner=semihard"], "AssertionError"),
        ([f"loss={MULTIPLE}, weights: [1]}}"], "AssertionError"),
        (["loss=pml.MultipleLosses", "loss.losses=ice"], "must be a list of losses, or a map"),
        (["loss=pml.MultipleLosses", "loss.losses=[]"], "or a map of them, not an empty one"),
        (
            ["loss=pml.CrossBatchMemory", "loss.loss={scale: 5}"],
            "must be a loss: its name, or a map with its name, not a map without one",
        ),
        (["loss=pml.MultipleLosses", "loss.losses=[ice, 3]"], "loss.losses.1: must be a loss: its"),
        (["loss=pml.InstanceLoss", "miner=batch_hard"], "indices_tuple is not supported"),
        (["loss=pml.ArcFaceLoss", "loss.weight_init_func=zeros"], "'str' object is not callable"),
    ],
)
def test_what_cannot_be_trained_with_is_refused_before_anything_is_built(settings, says):
    (line,) = complaint(*settings).splitlines()
    assert says in line


@pytest.mark.slow
def test_nested_values_survive_dump_digest_overrides_and_sweeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(FILE % "LpDistance")
    whole = config.load("x.yaml")
    distance = whole.loss.arguments["loss"]["distance"]
    assert (distance["name"], distance["p"]) == ("pml.LpDistance", 2)
    (tmp_path / "y.yaml").write_text(config.dump(whole))
    spelled = config.load("x.yaml", ["loss.loss.distance={name: pml.LpDistance, p: 2}"])
    assert config.load("y.yaml").digest() == whole.digest() == spelled.digest()
    other = config.load("x.yaml", ["loss.loss.distance.p=1", "loss.loss.temperature=0.5"])
    assert other.loss.arguments["loss"]["distance"]["p"] == 1
    assert other.loss.arguments["loss"]["temperature"] == 0.5
    named = config.load("x.yaml", ["loss.loss.distance=LpDistance", "loss.loss.distance.p=1"])
    assert named.loss.arguments["loss"]["distance"]["p"] == 1
    swept = config.load_all("x.yaml", sweeps=["loss.loss.distance=LpDistance,CosineSimilarity"])
    names = [v.config.loss.arguments["loss"]["distance"]["name"] for v in swept]
    assert names == ["pml.LpDistance", "pml.CosineSimilarity"]
    assert len({variant.config.digest() for variant in swept}) == 2


def test_the_schema_for_editors_admits_them_in_strangers_too(monkeypatch):
    jsonschema = pytest.importorskip("jsonschema")

    class Mixed(torch.nn.Module):
        """A mixture."""

        def __init__(self, first: torch.nn.Module, losses=None, distance=None) -> None:
            super().__init__()

    monkeypatch.setattr(components, "_registered", {})
    zoo.register("losses", "mixed")(Mixed)
    names = {kind: components.names(kind) for kind in components.KINDS}
    validator = jsonschema.Draft7Validator(editor.schema(names))
    for loss in (
        {"name": "mixed", "first": "ice", "losses": ["rll", {"name": "ice", "scale": 3}]},
        {"name": "mixed", "first": {"name": "ice"}, "distance": {"name": "LpDistance", "p": 1}},
        {"name": "pml.CrossBatchMemory", "loss": {"name": "ice", "scale": 32}},
    ):
        assert not list(validator.iter_errors({"loss": loss}))
    for loss in (
        {"name": "mixed", "first": {"name": "ice", "scael": 3}},
        {"name": "mixed", "first": "ice", "losses": "rll"},
        {"name": "mixed", "first": 5},
    ):
        assert list(validator.iter_errors({"loss": loss}))


def test_a_strangers_loss_nests_and_takes_components_by_its_annotations(monkeypatch):
    class Mixed(torch.nn.Module):
        """A mixture."""

        gallery = mined = True

        def __init__(self, first: torch.nn.Module, style: str = "x", miner: str = "none") -> None:
            super().__init__()
            self.first, self.style, self.miner = first, style, miner

    monkeypatch.setattr(components, "_registered", {})
    zoo.register("losses", "mixed")(Mixed)
    memory = zoo.build(
        "losses",
        "pml.CrossBatchMemory",
        embedding_size=4,
        loss={"name": "mixed", "first": {"name": "ice", "scale": 7}, "miner": "batch_hard"},
    )
    assert (memory.loss.first.scale, memory.loss.miner) == (7, "batch_hard")  # that one is text
    (line,) = complaint("loss=mixed", "loss.first=contrastiv").splitlines()
    assert "loss.first" in line
    assert "did you mean contrastive" in line


def test_items_of_a_list_are_changed_by_their_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(f"extends: ice_glyphs\nloss: {MULTIPLE}}}\n")
    first, second = config.load(
        "x.yaml", [*SHORT, "loss.losses.0.scale=32", "loss.losses.1.temperature=0.5"]
    ).loss.arguments["losses"]
    assert (first["name"], first["scale"], second["temperature"]) == ("ice", 32, 0.5)


def test_a_run_with_nested_components_ends_on_a_board_that_tells_them_apart(tmp_path):
    memory = "loss={name: pml.CrossBatchMemory, loss: ice, memory_size: 12}"
    for scale in (16, 32):
        small_run(tmp_path, memory, f"loss.loss.scale={scale}")
    (board,) = leaderboard.boards(leaderboard.load(tmp_path / "runs"))
    console = Console(file=io.StringIO(), width=200)
    console.print(leaderboard.to_table(board, 200))
    text = console.file.getvalue()
    assert "loss.loss.scale=16" in text
    assert "loss.loss.scale=32" in text
