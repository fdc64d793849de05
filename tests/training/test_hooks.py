"""The hooks of a loss, each used by a loss that nobody has seen before."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo import runner
from zoo.config import load
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.registry import components, hooks
from zoo.runs.folder import RunFolder
from zoo.training import experiment as training_experiment
from zoo.training import loop
from zoo.training.optimizer import make_optimizer

pytestmark = pytest.mark.usefixtures("few_glyphs")

SMALL = (
    "model.backbone.width=4",
    "model.embedding_size=16",
    "sampler={name: m_per_class, classes: 8, per_class: 4}",
    "train.iterations=6",
    "train.checkpoint_every=2",
    "train.log_every=1",
    "optimizer.lr=5e-3",
    "device=cpu",
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(components, "_registered", {})


class Base(nn.Module):
    """A plain loss with something to learn."""

    def distance(self, embeddings, labels):
        f = nn.functional.normalize(embeddings)
        same = labels[:, None] == labels
        return (f @ f.T)[~same].mean() - (f @ f.T)[same].mean()


class PerImage(Base):
    """Remembers the last embedding of each image, and compares with it."""

    def __init__(self, num_images, embedding_size):
        super().__init__()
        self.register_buffer("slots", torch.zeros(num_images, embedding_size))
        self.register_buffer("seen", torch.zeros(num_images, dtype=torch.int64))

    def forward(self, embeddings, labels, image_ids):
        old = self.slots[image_ids]
        self.seen.index_add_(0, image_ids, torch.ones_like(image_ids))
        self.slots[image_ids] = embeddings.detach()
        return self.distance(embeddings, labels) + 0.01 * (embeddings - old).square().mean()


class ByEpoch(Base):
    """Weighs classes by what it found in the data at the start of the epoch."""

    def __init__(self, num_classes):
        super().__init__()
        self.spread = torch.ones(num_classes)
        self.called = 0

    def begin_epoch(self, epoch, labels, embed):
        everything = embed()
        torch.testing.assert_close(embed([3, 1]), everything[[3, 1]])
        assert not everything.requires_grad
        self.spread = torch.stack([everything[labels == c].std() for c in labels.unique()])
        self.spread = self.spread + 0.1 * torch.rand(len(self.spread))  # random numbers too
        self.called += 1

    def get_extra_state(self):
        return {"spread": self.spread, "called": self.called}

    def set_extra_state(self, state):
        self.spread, self.called = state["spread"], state["called"]

    def forward(self, embeddings, labels):
        weight = self.spread[labels][:, None]
        return self.distance(embeddings, labels) + (weight * embeddings).square().mean()


class Grouping(Base):
    """Wants even images in one batch, and odd ones in another."""

    def __init__(self, num_images):
        super().__init__()
        self.register_buffer("mixed", torch.zeros(()))

    def begin_epoch(self, epoch, labels, embed):
        return torch.arange(len(labels)) % 2

    def forward(self, embeddings, labels, image_ids):
        self.mixed += (image_ids % 2 != image_ids[0] % 2).sum()
        return self.distance(embeddings, labels)


class OfLevels(Base):
    """Takes all slices of an embedding, of which the second shall differ from the first."""

    def __init__(self, level_sizes, embedding_size):
        super().__init__()
        assert sum(level_sizes) == embedding_size
        self.level_sizes = level_sizes
        self.mix = nn.Linear(level_sizes[0], level_sizes[1])

    def parameter_groups(self):
        return [{"params": self.mix.parameters(), "lr_multiplier": 0.5}]

    def forward(self, embeddings, labels):
        first, second = embeddings.split(self.level_sizes, dim=1)
        near = nn.functional.cosine_similarity(self.mix(first), second).square().mean()
        return self.distance(first, labels) + self.distance(second, labels) + 0.1 * near


HOOKED = {"per_image": PerImage, "by_epoch": ByEpoch, "grouping": Grouping, "of_levels": OfLevels}
SLICED = ("model.slices=[4, 12]",)
GROUPED = ("sampler={name: grouped, classes: 4, per_class: 2}",)
MORE = {"of_levels": SLICED, "grouping": GROUPED}


def settings(tmp_path, name, *more):
    zoo.register("losses", name)(HOOKED[name])
    everything = [
        *SMALL,
        f"loss={{name: {name}}}",
        f"output={tmp_path}",
        *MORE.get(name, ()),
        *more,
    ]
    return list({text.split("=")[0]: text for text in everything}.values())


def run(tmp_path, name, *more):
    return runner.run(
        load("ice_glyphs", settings(tmp_path, name, *more)), reporter=Reporter(quiet=True)
    )


def checkpoint(tmp_path, result):
    return RunFolder(tmp_path / result["run"]).load_checkpoint()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function from a loss to the result of its run and its last checkpoint."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def of(name):
        result = run(folder, name)
        return result, checkpoint(folder, result)

    return of


@pytest.mark.parametrize("name", HOOKED)
def test_a_run_that_was_stopped_ends_bit_for_bit_the_same(name, whole, tmp_path, monkeypatch):
    batches = loop.training_batches

    def stop(*arguments, **options):
        for batch in batches(*arguments, **options):
            yield batch
            if batch.iteration == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, name)
    resumed = checkpoint(tmp_path, run(tmp_path, name))
    for part in ("embedder", "loss", "epochs"):
        torch.testing.assert_close(resumed[part], whole(name)[1][part], rtol=0, atol=0)


def test_a_loss_is_told_which_images_it_sees(whole):
    state = whole("per_image")[1]["loss"]
    train = zoo.build("datasets", "glyphs", split="train")
    assert state["seen"].shape == (len(train),)
    assert state["seen"].sum() == 6 * 32
    assert torch.equal(state["slots"].any(1), state["seen"] > 0)


def test_the_epoch_hook_is_called_at_the_start_of_each_epoch(tmp_path, monkeypatch):
    called = []
    begin = ByEpoch.begin_epoch
    monkeypatch.setattr(
        ByEpoch,
        "begin_epoch",
        lambda self, *given: (called.append(given[0]), begin(self, *given))[1],
    )
    data = "dataset={name: glyphs}"
    with monkeypatch.context() as patch:
        patch.setattr(zoo.datasets.m_per_class.MPerClassSampler, "__len__", lambda _: 2)
        run(tmp_path, "by_epoch", data)
    assert called == [0, 0, 1, 2]  # the first is tried on a copy


def test_a_loss_may_group_the_images(whole):
    state = whole("grouping")[1]
    assert state["loss"]["mixed"] == 0
    groups = state["sampler"]["groups"]
    assert torch.equal(groups, torch.arange(len(groups)) % 2)


def test_groups_need_a_sampler_that_draws_within_them(tmp_path):
    with pytest.raises(
        UserError, match="m_per_class does not draw batches within groups; set sampl"
    ):
        run(tmp_path, "grouping", "sampler={name: m_per_class, classes: 4, per_class: 2}")
    assert not list(tmp_path.glob("*/checkpoint.pt"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros(3), "an array of float64 of shape (3,) for 3 images"),
        ([0, 1], "of shape (2,) for 3 images; begin_epoch returns None"),
        (torch.zeros(3, 1, dtype=torch.int64), "of shape (3, 1)"),
    ],
)
def test_groups_that_are_none_are_refused(given, says):
    with pytest.raises(UserError) as error:
        hooks.groups_of(given, 3, "begin_epoch of mine")
    assert says in str(error.value)


def test_one_loss_takes_all_levels(whole, tmp_path):
    checked = load("ice_glyphs", settings(tmp_path, "of_levels"))
    built = training_experiment.assemble(checked)
    assert isinstance(built.loss, OfLevels)
    assert built.embedder.level_sizes == [4, 12]
    assert built.embedder.level_names == ["1", "2"]
    result = whole("of_levels")[0]
    assert result["recall_of_levels"].keys() == {"1", "2"}


def test_without_level_sizes_each_slice_has_a_loss(tmp_path):
    more = [*SLICED, "loss=proxy_nca"]
    built = training_experiment.assemble(load("ice_glyphs", [*SMALL, *more, f"output={tmp_path}"]))
    assert [tuple(loss.proxies.shape)[1] for loss in built.loss] == [4, 12]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (
            "model.slices=[4, 4]",
            "model.slices=[4, 4]: must add up to model.embedding_size, 16, not 8",
        ),
        ("model.slices=[16]", "model.slices"),
        ("model.slices=[16, 0]", "must be at least 1, not 0"),
    ],
)
def test_slices_that_do_not_fit(setting, says):
    with pytest.raises(UserError) as error:
        load("ice_glyphs", [*SMALL, setting])
    assert says in str(error.value)


def test_slices_of_pooled_features_are_compared_when_the_network_is_built(tmp_path):
    more = ["model.embedding_size=null", "model.slices=[4, 4]", f"output={tmp_path}"]
    with pytest.raises(UserError, match=r"slices \[4, 4\] are 8 together, and an embedding has 32"):
        training_experiment.assemble(load("ice_glyphs", [*SMALL[:1], *SMALL[2:], *more]))


def test_parameters_may_have_a_rate_of_their_own(tmp_path):
    more = settings(tmp_path, "of_levels", "optimizer.loss_multiplier=4")
    checked = load("ice_glyphs", more)
    built = training_experiment.assemble(checked)
    groups = make_optimizer(checked.optimizer, built.embedder, built.loss).param_groups
    assert [(g["name"], g["lr"]) for g in groups][-1] == ("loss", 4 * 0.5 * 5e-3)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([0, -1], "embed was asked for image -1; there are 5, from 0"),
        (torch.tensor([5]), "embed was asked for image 5; there are 5"),
        ([0.5], "embed takes ids (k,) of whole numbers, not float64 (1,)"),
        ([[0]], "not int64 (1, 1)"),
    ],
)
def test_images_that_there_are_not(ids, says):
    with pytest.raises(UserError) as error:
        hooks.checked_ids(ids, 5)
    assert says in str(error.value)


def test_a_hook_cannot_change_the_labels(tmp_path, monkeypatch):
    def begin_epoch(self, epoch, labels, embed):
        labels.zero_()

    monkeypatch.setattr(ByEpoch, "begin_epoch", begin_epoch)
    run(tmp_path, "by_epoch")  # with its sampler, which draws by the labels


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"params": []}], "parameter_groups gives"),
        ([3], "parameter_groups gives"),
        ([{"params": [], "lr_multiplier": None}], "lr_multiplier must be a number, not None"),
    ],
)
def test_groups_that_are_none_at_all(given, says):
    loss = OfLevels([2, 2], 4)
    loss.parameter_groups = lambda: given
    with pytest.raises(UserError, match=says):
        hooks.parameter_groups(loss, "mine")


@pytest.mark.parametrize("wrong", ["a stranger's", "twice", "twice in one", "negative"])
def test_groups_of_parameters_are_checked(wrong):
    loss = OfLevels([2, 2], 4)
    own = list(loss.mix.parameters())
    other = nn.Linear(1, 1)
    given = {
        "a stranger's": [{"params": other.parameters(), "lr_multiplier": 1}],
        "twice": [{"params": own, "lr_multiplier": 1}, {"params": own, "lr_multiplier": 2}],
        "twice in one": [{"params": own + own, "lr_multiplier": 1}],
        "negative": [{"params": own, "lr_multiplier": -1}],
    }[wrong]
    loss.parameter_groups = lambda: given
    with pytest.raises(UserError, match="mine: (parameter_groups may only|lr_multiplier must)"):
        hooks.parameter_groups(loss, "mine")
