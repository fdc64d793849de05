"""A run that meets a mistake in a stranger's component says so in one line that names it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import zoo
from zoo import UserError, runner
from zoo.base import Preprocess
from zoo.progress import Reporter

FILE = """\
extends: ice_glyphs
dataset: pictures
images: {resize: 16}
sampler: {name: m_per_class, classes: 3, per_class: 2}
model: {backbone: {name: convnet, width: 2}, embedding_size: 8}
train: {iterations: 3}
device: cpu
"""


class Pictures:
    """Noise of four classes a split."""

    def __init__(self, split: str) -> None:
        self.split = split
        self.labels = np.repeat(np.arange(4), 3)
        self.class_names = [f"{split} {i}" for i in range(4)]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        noise = np.random.default_rng(index).integers(0, 256, (20, 20, 3), np.uint8)
        return Image.fromarray(noise), int(self.labels[index])

    def fingerprint(self):
        return self.split

    def verify(self):
        return []


class Batches:
    """Every image in turn."""

    def __init__(self, labels) -> None:
        self.size, self.next = len(labels), 0

    def __len__(self):
        return 2

    def __iter__(self):
        while True:
            self.next += 6
            yield self.batch([i % self.size for i in range(self.next - 6, self.next)])

    def batch(self, indices):
        return indices

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Network(nn.Module):
    """One convolution."""

    feature_dims = (4,)
    preprocess = Preprocess()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return (self.layer(images),)


class Pairs(nn.Module):
    """All pairs of images with the same label, and of others."""

    def forward(self, embeddings, labels):
        same = labels[:, None] == labels
        positive = same & ~torch.eye(len(labels), dtype=torch.bool)
        return (*positive.nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True))


def go(folder, *settings):
    (folder / "x.yaml").write_text(FILE)
    everything = [*settings, f"output={folder / 'runs'}"]
    return runner.run(folder / "x.yaml", everything, reporter=Reporter(quiet=True))


@pytest.fixture
def registered(monkeypatch):
    """Register components for a test, the data set among them."""
    monkeypatch.setattr(zoo.registry.components, "_registered", {})
    zoo.register("datasets", "pictures")(Pictures)
    return lambda kind, cls: zoo.register(kind, "mine")(cls)


def faulty(base, **members):
    return type("Mine", (base,), {"__module__": __name__, **members})


def batches_of(change):
    return faulty(Batches, batch=lambda self, indices: change(indices))


def ending(self):
    yield from ([0, 1, 3, 4], [0, 1, 6, 7])


def breaking(self):
    raise KeyError("epoch")


SAMPLERS = {
    "ends": (faulty(Batches, __iter__=ending), "Mine ended after 2 batches; a sampler must go on"),
    "no state": (faulty(Batches, state_dict=None), r"mine: it has no state_dict\(\), which a samp"),
    "no length": (faulty(Batches, __len__=None), r"mine: it has no __len__\(\)"),
    "a wrong index": (batches_of(lambda b: [*b, 99]), "Mine gave the index 99 for 12 images"),
    "before the first": (batches_of(lambda b: [-1, *b]), "Mine gave the index -1 for 12 images"),
    "an empty batch": (batches_of(lambda b: []), "Mine gave an empty batch"),
    "floats": (batches_of(lambda b: [0.5, *b]), "Mine gave 0.5 as an index; a sampler gives lists"),
    "one index": (batches_of(lambda b: 3), "Mine gave 3; a sampler gives lists of whole numbers"),
    "an exception": (faulty(Batches, __iter__=breaking), "Mine failed: KeyError: 'epoch' .*py:"),
    "an exotic state": (
        faulty(Batches, state_dict=lambda self: {"rng": np.random.default_rng(0)}),
        r"Mine has a Generator in state_dict\(\)\['rng'\]; a checkpoint holds plain numbers",
    ),
}


@pytest.mark.parametrize("fault", SAMPLERS)
def test_samplers(tmp_path, registered, fault):
    cls, says = SAMPLERS[fault]
    registered("samplers", cls)
    one_line(tmp_path, says, "sampler=mine")


def of_network(**members):
    return faulty(Network, **members)


BACKBONES = {
    "no preprocess": (of_network(preprocess=None), "Mine says preprocess = None; it must be a z"),
    "wrong dims": (of_network(feature_dims=(5,)), "mine gave 4 channels where its feature_dims s"),
    "too many": (of_network(feature_dims=(4, 4)), r"mine gave 1 level, but says feature_dims = \("),
    "no tuple of dims": (
        of_network(feature_dims=4),
        "Mine says feature_dims = 4; it must be a tup",
    ),
    "a tensor": (
        of_network(forward=lambda self, x: self.layer(x)),
        r"mine gave a tensor of shape \(\d+, 4, .*; a backbone gives a tuple of feature maps",
    ),
    "an array": (
        of_network(forward=lambda self, x: (x.numpy(),)),
        r"mine gave an array of shape .*\(N, C\)",
    ),
    "an exception": (of_network(forward=breaking), "takes 1 positional argument"),
    "nothing of Module": (
        of_network(__init__=lambda self: None),
        r"Mine has an __init__ that does not begin with super\(\).__init__\(\)",
    ),
}


@pytest.mark.parametrize("fault", BACKBONES)
def test_backbones(tmp_path, registered, fault):
    cls, says = BACKBONES[fault]
    registered("backbones", cls)
    one_line(tmp_path, says, "model.backbone={name: mine}")


def with_labels(labels):
    def start(self, split):
        Pictures.__init__(self, split)
        self.labels = labels

    return faulty(Pictures, __init__=start)


def without_names(self, split):
    Pictures.__init__(self, split)
    del self.class_names


DATASETS = {
    "no names": (
        faulty(Pictures, __init__=without_names),
        "mine: the test split has no class_n",
    ),
    "tensors": (
        faulty(Pictures, __getitem__=lambda self, i: (torch.zeros(3, 8, 8), 0)),
        r"Mine\[\d+\] gave a tensor of shape \(3, 8, 8\) and type float32 for an image; a data set",
    ),
    "no pairs": (
        faulty(Pictures, __getitem__=lambda self, i: 5),
        r"Mine\[\d+\] gave 5; a data",
    ),
    "an exception": (
        faulty(Pictures, __getitem__=lambda self, i: {}["pixels"]),
        r"reading image \d+ of Mine failed: KeyError: 'pixels' \(.*test_strangers.py:\d+",
    ),
    "float labels": (with_labels(np.zeros(12)), r"has labels of shape \(12,\) and type float64"),
    "labels of two": (with_labels(np.zeros((12, 2), int)), r"has labels of shape \(12, 2\)"),
    "beyond the names": (with_labels(np.arange(12)), "has the label 4, but 4 names in class_names"),
    "below 0": (with_labels(np.arange(-1, 11)), "has the label -1, but 4 names"),
    "another length": (
        faulty(Pictures, __len__=lambda self: 13),
        r"has 13 images by its len\(\), but 12 labels",
    ),
    "a number as fingerprint": (
        faulty(Pictures, fingerprint=lambda self: 5),
        "mine: it has the fingerprint 5; it must be text",
    ),
    "a fingerprint that breaks": (
        faulty(Pictures, fingerprint=lambda self: {}["files"]),
        "the fingerprint of mine failed: KeyError: 'files'",
    ),
    "a length that breaks": (faulty(Pictures, __len__=breaking), "its test split, failed: KeyErr"),
}


@pytest.mark.parametrize("fault", DATASETS)
def test_datasets(tmp_path, registered, fault):
    cls, says = DATASETS[fault]
    registered("datasets", cls)
    one_line(tmp_path, says, "dataset=mine")


def test_classes_that_are_in_both_splits_are_warned_of(tmp_path, registered):
    def start(self, split):
        Pictures.__init__(self, split)
        self.class_names = list("abcd")

    registered("datasets", faulty(Pictures, __init__=start))
    with pytest.warns(UserWarning, match="mine has 4 classes in both splits .*unseen classes"):
        go(tmp_path, "dataset=mine", "train.iterations=1")


def giving(value):
    return faulty(Pairs, forward=lambda self, embeddings, labels: value(labels))


def swapped(labels):
    positives, negatives = (Pairs()(None, labels)[i : i + 2] for i in (0, 2))
    return *negatives, *positives


MINERS = {
    "None": (giving(lambda y: None), "gave None; a miner gives a tuple of int64 tensors"),
    "two parts": (giving(lambda y: (y, y)), "gave a tuple of 2; a miner gives"),
    "floats": (giving(lambda y: (y / 2,) * 3), "gave a tensor of shape .* and type float32 as one"),
    "unequal parts": (
        giving(lambda y: (y, y, y[:2])),
        "gave parts of 6, 6, 2 indices, which",
    ),
    "a wrong index": (giving(lambda y: (y, y, y + 99)), "gave the index 10. for a batch of 6"),
    "labels swapped": (giving(swapped), "gave images . and ., of two classes, as a positive pair"),
    "itself": (giving(lambda y: (y, y, y)), "gave image . as a positive of itself"),
    "an exception": (giving(lambda y: {}["hard"]), "failed: KeyError: 'hard' .*test_strangers.py:"),
    "no module": (type("Mine", (), {}), "mine: it is a Mine, not a torch.nn.Module"),
    "nothing of Module": (
        faulty(Pairs, __init__=lambda self: None),
        "mine: it has an __init__ that does not begin with super",
    ),
}


@pytest.mark.parametrize("fault", MINERS)
def test_miners(tmp_path, registered, fault):
    cls, says = MINERS[fault]
    registered("miners", cls)
    one_line(tmp_path, "mine.* " + says.removeprefix("mine: "), "miner=mine", "loss=contrastive")


def test_a_miner_may_say_that_its_pairs_are_not_by_the_labels(tmp_path, registered):
    reason = {"expected_failures": {"check_labels": "it mines noise on purpose"}}
    own = type("Mine", (MINERS["labels swapped"][0],), reason)
    registered("miners", own)
    assert go(tmp_path, "miner=mine", "loss=contrastive", "train.iterations=1")


def test_sound_ones_run(tmp_path, registered):
    for kind, cls in {"samplers": Batches, "backbones": Network, "miners": Pairs}.items():
        registered(kind, cls)
    mine = ["sampler=mine", "model.backbone={name: mine}", "miner=mine", "loss=contrastive"]
    assert go(tmp_path, *mine)["recall"]


def one_line(folder, says, *settings):
    """Require a run to be refused in one line, which names the component."""
    with pytest.raises(UserError, match=says) as error:
        go(folder, *settings)
    assert "\n" not in str(error.value)
    assert not list(folder.glob("runs/*/result.json"))


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("nor can it say what")


def failing(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
    raise SilentError


LOSSES = {
    "nothing of Module": (
        {"__init__": lambda self: None},
        "mine: it has an __init__ that does not begin with super",
    ),
    "an error without words": ({"forward": failing}, "mine on 6 embeddings, .* failed: SilentErro"),
}


@pytest.mark.parametrize("fault", LOSSES)
def test_losses(tmp_path, registered, fault):
    members, says = LOSSES[fault]
    registered("losses", type("Mine", (nn.Module,), {"forward": failing, **members}))
    one_line(tmp_path, says, "loss=mine")


def test_checks_of_a_loss_that_is_nothing_of_module(registered):
    registered("losses", type("Mine", (nn.Module,), LOSSES["nothing of Module"][0]))
    with pytest.raises(UserError, match="mine has an __init__ that does not begin with super"):
        zoo.checks.run("mine")
