"""Checks of components other than losses: ours pass; each check finds its fault."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from zoo import UserError, checks
from zoo.base import Preprocess
from zoo.checks import CHECKS_OF, CheckFailedError, Part
from zoo.registry import names

SAMPLERS = {
    "grouped": {"classes": 4, "per_class": 2},
    "m_per_class": {"classes": 4, "per_class": 2},
    "shuffle": {"batch_size": 7},
    "hard_class": {"classes": 4},
    "anchor_neighbours": {"classes": 8, "per_class": 2},
    "schem": {"classes": 8, "per_class": 2, "anchors": 2},
    "smart_mining": {"anchors": 5},
}


def assert_passes(part):
    report = checks.run(part)
    assert report.ok, str(report.failures)


@checks.parametrize_with_checks(names("miners"), kind="miners")
def test_miners(component, check):
    check(component)


@checks.parametrize_with_checks(names("spaces"), kind="spaces")
def test_spaces(component, check):
    check(component)


@pytest.mark.parametrize("name", names("samplers"))
def test_samplers(name):
    assert_passes(Part(name, "samplers", SAMPLERS[name]))


def test_a_backbone():
    assert_passes(Part("convnet", "backbones", {"width": 2}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bn_inception", "torchvision.mobilenet_v2"])
def test_more_backbones(name):
    assert_passes(Part(name, "backbones"))


@pytest.mark.slow
def test_a_data_set():
    assert_passes(Part("glyphs", "datasets"))


# ---- a fault for each check


class Miner(nn.Module):
    def forward(self, x, y):
        same = y[:, None] == y
        a, p = (same & ~torch.eye(len(y), dtype=torch.bool)).nonzero(as_tuple=True)
        return (a, p, *(~same).nonzero(as_tuple=True))


class OnlyAnchors(Miner):
    def forward(self, x, y):
        return super().forward(x, y)[0]


class Swapped(Miner):
    def forward(self, x, y):
        a, p, b, n = super().forward(x, y)
        return b, n, a, p


class NeedsNegatives(Miner):
    def forward(self, x, y):
        a, p, b, n = super().forward(x, y)
        return a, p, b[[0]], n[[0]]


class NeedsPositives(Miner):
    def forward(self, x, y):
        a, p, b, n = super().forward(x, y)
        return a[[0]], p[[0]], b, n


class NeedsDistances(Miner):
    def forward(self, x, y):
        if torch.equal(x, x[:1].expand_as(x)):
            raise RuntimeError("all are equal")
        return super().forward(x, y)


class NeedsFloat32(Miner):
    def forward(self, x, y):
        if x.dtype != torch.float32:
            raise RuntimeError("expected Float")
        return super().forward(x, y)


class Random(Miner):
    def forward(self, x, y):
        a, p, b, n = super().forward(x, y)
        keep = torch.rand(len(b)) < 0.5
        return a, p, b[keep], n[keep]


class FirstHalf(Miner):
    def forward(self, x, y):
        a, p, b, n = super().forward(x, y)
        return a, p, b[: len(b) // 2], n[: len(n) // 2]


class InPlace(Miner):
    def forward(self, x, y):
        x /= 2
        return super().forward(x, y)


class Sampler:
    def __init__(self, labels, seed=0):
        self.labels, self.seed, self.batch, self.batch_size = labels, seed, 0, 8

    def __len__(self):
        return len(self.labels) // 8

    def drawn(self):
        order = np.random.default_rng((self.seed, self.batch // len(self)))
        start = 8 * (self.batch % len(self))
        return order.permutation(len(self.labels))[start : start + 8].tolist()

    def __iter__(self):
        while True:
            batch = self.drawn()
            self.batch += 1
            yield batch

    def state_dict(self):
        return {"batch": self.batch}

    def load_state_dict(self, state):
        self.batch = state["batch"]


class Floats(Sampler):
    def drawn(self):
        return [float(i) for i in super().drawn()]


class OneEpoch(Sampler):
    def __iter__(self):
        return itertools.islice(super().__iter__(), len(self))


class Smaller(Sampler):
    def drawn(self):
        return super().drawn()[: 5 + self.batch % 3]


class OneClass(Sampler):
    def drawn(self):
        return np.flatnonzero(self.labels == 0)[[0, 1, 2, 3, 0, 1, 2, 3]].tolist()


class Unseeded(Sampler):
    def drawn(self):
        return np.random.permutation(len(self.labels))[:8].tolist()


class Forgets(Sampler):
    def load_state_dict(self, state):
        pass


class LeavesOut(Sampler):
    def drawn(self):
        return [i // 2 for i in super().drawn()]


class FailsOnFew(Sampler):
    def __init__(self, labels, seed=0):
        super().__init__(labels, seed)
        self.share = 1 / len(self)


class Backbone(nn.Module):
    feature_dims = (4,)
    preprocess = Preprocess()

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 8, stride=8)

    def forward(self, images):
        return (self.layer(images),)


class NoPreprocess(Backbone):
    preprocess = None


class BareTensor(Backbone):
    def forward(self, images):
        return self.layer(images)


class OtherDims(Backbone):
    feature_dims = (5,)


class OneSize(Backbone):
    def forward(self, images):
        return (self.layer(images).reshape(len(images), 4, 144).mean(2),)


class Drops(Backbone):
    def forward(self, images):
        return (nn.functional.dropout(self.layer(images), 0.5),)


class LooksAtTheBatch(Backbone):
    def forward(self, images):
        found = self.layer(images)
        return (found - found.mean(0),)


class NotFinite(Backbone):
    def forward(self, images):
        return (self.layer(images) / images.std(),)


class NoGradient(Backbone):
    def forward(self, images):
        return (self.layer(images).detach() + 0 * self.layer.weight.sum(),)


class Hidden(Backbone):
    def __init__(self):
        super().__init__()
        self.scale = float(torch.rand(())) + 0.5

    def forward(self, images):
        return (self.layer(images) * self.scale,)


class OverflowsInHalf(Backbone):
    def forward(self, images):
        found = self.layer(images)
        return (found if found.dtype == torch.float32 else found / 0,)


class NotPicklable(Backbone):
    def __init__(self):
        super().__init__()
        self.hook = lambda x: x


class Data:
    def __init__(self, split):
        self.split = split
        self.class_names = [f"{split} {i}" for i in range(4)]
        self.labels = np.repeat(np.arange(4), 3)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return Image.new("RGB", (9, 9), (20 * index, 0, 0)), int(self.labels[index])

    def fingerprint(self):
        return self.split

    def verify(self):
        return ["note: all is well"]


class NoNames(Data):
    def __init__(self, split):
        super().__init__(split)
        del self.class_names


class Tensors(Data):
    def __getitem__(self, index):
        return torch.zeros(3, 9, 9), super().__getitem__(index)[1]


class OtherLabels(Data):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], 0


class Augmented(Data):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return Image.effect_noise(image.size, 50), label


class Endless(Data):
    def __getitem__(self, index):
        return super().__getitem__(index % 12)


class TwiceTheName(Data):
    def __init__(self, split):
        super().__init__(split)
        self.class_names[1] = self.class_names[0]


class SameClasses(Data):
    def __init__(self, split):
        super().__init__(split)
        self.class_names = list("abcd")


class SingleImages(Data):
    def __init__(self, split):
        super().__init__(split)
        self.labels, self.class_names = np.arange(12), [f"{split} {i}" for i in range(12)]


class SameFingerprint(Data):
    def fingerprint(self):
        return "0"


class HoldsAFunction(Data):
    def __init__(self, split):
        super().__init__(split)
        self.reads = lambda: None


class FindsAnError(Data):
    def verify(self):
        return ["a.jpg: cannot be read"]


class OtherInMemory(Data):
    images = torch.zeros(12, 3, 9, 9, dtype=torch.uint8)


class Space:
    """Euclidean, in twice as many coordinates."""

    def points(self, embeddings):
        return torch.cat([embeddings, 2 * embeddings], 1)

    def distances(self, a, b):
        squared = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
        fine = squared > 0
        return torch.where(fine, torch.where(fine, squared, 1).sqrt(), 0)

    def query_vectors(self, points):
        return torch.cat([2 * points, -torch.ones_like(points[:, :1])], 1)

    def gallery_vectors(self, points):
        return torch.cat([points, points.square().sum(1, keepdim=True)], 1)

    def distances_of(self, products, queries):
        return (queries.square().sum(1, keepdim=True) - products).clamp_min(0).sqrt()


class OfTheBatch(Space):
    def points(self, embeddings):
        return embeddings - embeddings.mean(0)


class NotItself(Space):
    def distances(self, a, b):
        return (super().distances(a, b) - 1).abs()


class OtherOrder(Space):
    def query_vectors(self, points):
        return torch.cat([points, -torch.ones_like(points[:, :1])], 1)


class OtherDistances(Space):
    def distances_of(self, products, queries):
        return 2 * super().distances_of(products, queries)


class EndlessGradient(Space):
    def distances(self, a, b):
        return (a[:, None] - b).square().sum(2).sqrt()


class Coarse(Space):
    def distances(self, a, b):
        return super().distances(a, b if b.dtype == torch.float64 else b.bfloat16().to(b))


FAULTS = {
    "spaces": {
        OfTheBatch: "check_points",
        NotItself: "check_distances",
        OtherOrder: "check_order",
        OtherDistances: "check_distances_of",
        EndlessGradient: "check_gradient",
        Coarse: "check_float32",
    },
    "miners": {
        OnlyAnchors: "check_form",
        Swapped: "check_labels",
        NeedsNegatives: "check_one_class",
        NeedsPositives: "check_single_images",
        NeedsDistances: "check_equal_embeddings",
        NeedsFloat32: "check_half_precision",
        Random: "check_determinism",
        FirstHalf: "check_permutation",
        InPlace: "check_leaves_inputs",
    },
    "samplers": {
        Floats: "check_batches",
        OneEpoch: "check_endless",
        Smaller: "check_batch_size",
        OneClass: "check_two_classes",
        Unseeded: "check_seed",
        Forgets: "check_resume",
        LeavesOut: "check_every_image",
        FailsOnFew: "check_too_few_images",
    },
    "backbones": {
        NoPreprocess: "check_attributes",
        BareTensor: "check_levels",
        OtherDims: "check_levels",
        OneSize: "check_sizes",
        Drops: "check_evaluation",
        LooksAtTheBatch: "check_evaluation",
        NotFinite: "check_finite",
        NoGradient: "check_gradient",
        Hidden: "check_state_dict",
        OverflowsInHalf: "check_autocast",
        NotPicklable: "check_pickle",
    },
    "datasets": {
        NoNames: "check_labels",
        Tensors: "check_images",
        OtherLabels: "check_images",
        Augmented: "check_repeatable",
        Endless: "check_out_of_range",
        TwiceTheName: "check_class_names",
        SameClasses: "check_splits",
        SingleImages: "check_two_images",
        SameFingerprint: "check_fingerprint",
        HoldsAFunction: "check_pickle",
        FindsAnError: "check_verify",
        OtherInMemory: "check_cut_from_memory",
    },
}


@pytest.mark.parametrize(
    ("kind", "faulty", "name"),
    [(kind, cls, name) for kind, found in FAULTS.items() for cls, name in found.items()],
)
def test_a_check_finds_its_fault(kind, faulty, name):
    check = {check.__name__: check for check in CHECKS_OF[kind]}[name]
    with pytest.raises(CheckFailedError):
        check(Part(faulty, kind))


@pytest.mark.parametrize("kind", FAULTS)
def test_every_check_has_a_fault_that_it_finds(kind):
    assert set(FAULTS[kind].values()) == {check.__name__ for check in CHECKS_OF[kind]}


@pytest.mark.parametrize(
    ("kind", "sound"),
    [("miners", Miner), ("backbones", Backbone), ("datasets", Data), ("spaces", Space)],
)
def test_a_sound_one_passes(kind, sound):
    """What the faulty ones inherit has no fault."""
    assert_passes(Part(sound, kind))


# ---- by the command


def test_the_command_checks_a_kind(command):
    status, said, _ = command("check", "samplers", "m_per_class", "classes=4", "per_class=2")
    assert (status, "check_resume" in said, "8 passed" in said) == (0, True, True)
    only = ("--only", "check_seed")
    status, said, _ = command("check", "samplers", "shuffle", "batch_size=7", *only)
    assert (status, "1 passed" in said) == (0, True)
    status, said, _ = command("check", "miners", "--list")
    assert (status, "what it requires of a miner" in said) == (0, True)


def test_the_command_shows_a_fault(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_wrong_miner.py").write_text(
        "import torch\n\n\nclass Mine(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        return y\n"
    )
    status, said, _ = command("check", "miners", "a_wrong_miner:Mine")
    assert (status, "gave a tensor of shape" in said, "a miner gives" in said) == (1, True, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["samplers", "m_per_clas"], "did you mean m_per_class"),
        (["samplers"], "name a sampler to check"),
        (["miners", "semihard", "--only", "check_nothing"], "no check of miners named"),
        (["samplers", "shuffle"], "batch_size"),
        (["datasets", "image_folder"], "root"),
    ],
)
def test_what_cannot_be_checked(command, arguments, said):
    status, _, message = command("check", *arguments)
    assert (status, said in message) == (2, True), message


def test_a_constructor_that_fails_is_named():
    with pytest.raises(UserError, match="building FailsOnFew failed: ZeroDivisionError"):
        Part(FailsOnFew, "samplers").build(labels=np.zeros(1), seed=0)


def test_a_missing_argument_is_told_with_where_to_give_it():
    with pytest.raises(UserError, match="missing argument of m_per_class; give it after the name"):
        Part("m_per_class", "samplers", {"per_class": 2})
