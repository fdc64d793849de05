"""A memory of batches with every loss that takes a gallery, against a list of what was seen."""

from __future__ import annotations

import warnings

import pytest
import torch
from on_devices import META, no_waiting
from pytorch_metric_learning import losses as pml

import zoo
from zoo import UserError, registry
from zoo.checks import Subject

NOT_INSIDE = ("cross_batch_memory",)
INNER = [name for name in zoo.names("losses") if name not in NOT_INSIDE]
WITH_GALLERY = [name for name in INNER if Subject(name).traits.gallery]
BY_ORDER = ("matching_net_fce",)  # its LSTM reads the gallery in its order
WITHOUT = [name for name in INNER if name not in WITH_GALLERY]


def sizes(name):
    """Return what a run supplies, for 30 images of six classes."""
    wanted = () if name.startswith("pml.") else getattr(registry.load("losses", name), "spaces", ())
    space = zoo.build("spaces", wanted[0]) if wanted else None
    of_data = {"num_classes": 6, "num_images": 30, "space": space}
    return {**of_data, "embedding_size": 8, "level_sizes": [4, 4]}


def inner_of(name):
    """Return a loss as a config has it, with the arguments that have no default."""
    own = {} if name.startswith("pml.") else registry.load("losses", name).check_arguments
    return {"name": name, **own}


def build(loss, **arguments):
    given = {"loss": inner_of(loss), **arguments}
    return registry.assemble("losses", "cross_batch_memory", given, sizes(loss))


def batch_of(step, images=10):
    """Return embeddings, labels and numbers of some of 30 images of six classes."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randperm(30, generator=generator)[:images]
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(100), dtype=torch.float64)[
        ids % 6
    ]
    return x + torch.randn(len(ids), 8, generator=generator, dtype=torch.float64), ids % 6, ids


class Memory:
    """A list of (embedding, label, image), the oldest first; None for a place that is empty."""

    def __init__(self, size):
        self.entries = [None] * size

    def left(self, images, ids):
        """Return what is left when a batch has taken its places, and what made place."""
        own = set() if ids is None else set(ids.tolist())
        is_own = [entry is not None and entry[2] in own for entry in self.entries]
        leave = [i for i, is_one in enumerate(is_own) if is_one]
        leave += [i for i, entry in enumerate(self.entries) if entry is None]
        leave = [*leave, *(i for i in range(len(is_own)) if i not in leave)][:images]
        left = [entry for i, entry in enumerate(self.entries) if i not in leave]
        return left, [self.entries[i] for i in leave]

    def others(self, images, ids):
        """Return what is compared with a batch; None if that is not yet enough."""
        left, _ = self.left(images, ids)
        return left if left and None not in left else None

    def store(self, x, labels, ids, momentum=0.0):
        left, gone = self.left(len(x), ids)
        old = {entry[2]: entry[0] for entry in gone if entry is not None}
        new, had = [], set()
        images = [None] * len(x) if ids is None else ids.tolist()
        for row, label, image in zip(x, labels.tolist(), images, strict=True):
            if image is not None and image in old:
                row = momentum * old[image] + (1 - momentum) * row
            if image not in had:
                new.append((row, label, image))
            had |= {image} - {None}
        stay = gone[len(new) :]  # copies of an image take no place
        self.entries = [*stay, *left, *new]


def expected(inner, x, labels, others, weight=1.0):
    if others is None:
        return inner(x, labels)
    gallery = torch.stack([entry[0] for entry in others])
    of_gallery = torch.tensor([entry[1] for entry in others])
    with_memory = inner(x, labels, ref_emb=gallery, ref_labels=of_gallery)
    return inner(x, labels) + weight * with_memory


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["images known", "images unknown"])
@pytest.mark.parametrize("name", [name for name in WITH_GALLERY if name not in BY_ORDER])
def test_every_loss_with_a_gallery(name, known, derive, same):
    """Seven steps of 10 of 30 images, so that images come again; the memory has 18."""
    torch.manual_seed(0)
    loss, memory, used = build(name, memory_size=18).double(), Memory(18), 0
    for step in range(7):
        x, labels, ids = batch_of(step)
        given = {"image_ids": ids} if known else {}
        others = memory.others(len(x), ids if known else None)
        wanted = derive(lambda z: expected(loss.loss, z, labels, others), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels, **given), x), wanted, 1e-10)  # noqa: B023
        memory.store(x, labels, ids if known else None)
        used += others is not None
    assert 5 <= used < 7


def test_there_are_losses_of_either_kind():
    assert {"ice", "rll", "lifted_struct", "triplet_semihard", "binomial_deviance"} < set(
        WITH_GALLERY
    )
    assert {"matching_net", "histogram", "snr", "contrastive"} < set(WITH_GALLERY)
    assert {"angular", "proxy_nca", "struct_clust", "scalable_nca"} < set(WITHOUT)


@pytest.mark.parametrize("name", WITHOUT)
def test_others_are_refused(name):
    with pytest.raises(UserError, match="a memory needs a loss that takes a gallery; .* has"):
        build(name)


def of_pml():
    """Return the losses of PML that can be built from the sizes of a run."""
    found = []
    for name in registry.pml_names("losses"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                registry.assemble("losses", name, {}, sizes(name))
            except UserError:
                continue
        found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array_wrap__")
def test_the_losses_of_pml_work_or_are_refused(derive):
    refused = []
    for name in of_pml():
        try:
            loss = build(name, memory_size=18)
        except UserError as error:
            refused.append((name.removeprefix("pml."), str(error)))
            continue
        for step in range(4):
            x, labels, ids = batch_of(step)
            value, gradient = derive(lambda z: loss(z, labels, image_ids=ids), x.float())  # noqa: B023
            assert value.isfinite()
            assert gradient.isfinite().all()
        assert loss.stored == 40
    assert all("a memory needs a loss that takes a gallery" in said for _, said in refused)
    works = {name.removeprefix("pml.") for name in of_pml()} - set(dict(refused))
    assert set(pml.CrossBatchMemory.supported_losses()) <= works
    assert {"ArcFaceLoss", "ProxyAnchorLoss", "SoftTripleLoss"} <= set(dict(refused))


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_copies_and_momentum(momentum, derive, same):
    """A batch of one image four times, and of images that the memory has."""
    loss = build("ice", memory_size=16, momentum=momentum).double()
    memory = Memory(16)
    for step in range(8):
        x, labels, ids = batch_of(step, images=6)
        ids = torch.cat([ids, ids[:1].repeat(3)]) if step % 3 == 1 else ids
        labels = ids % 6
        x = torch.cat([x, x[:1] + torch.eye(8)[:3]]) if step % 3 == 1 else x
        others = memory.others(len(x), ids)
        wanted = derive(lambda z: expected(loss.loss, z, labels, others), x)  # noqa: B023
        same(derive(lambda z: loss(z, labels, image_ids=ids), x), wanted, 1e-10)  # noqa: B023
        memory.store(x, labels, ids, momentum)
    assert others is not None


def test_the_memory_has_each_image_once_and_none_of_the_batch():
    loss = build("ice", memory_size=20)
    for step in range(9):
        x, labels, ids = batch_of(step)
        before = loss.memory_ids.clone()
        loss.ids = ids
        leave, others = loss._rows(10)
        loss.ids = None
        assert not torch.isin(before[others], ids).any()
        assert len(leave) == len(others) == 10
        loss(x.float(), labels, image_ids=ids)
        held = loss.memory_ids[loss.age >= 0]
        assert len(held) == len(held.unique())
        assert torch.isin(ids, held).all()


def test_weight_start_and_evaluation(derive, same):
    x, labels, _ = batch_of(0)
    later, of_later, _ = batch_of(1)
    loss = build("ice", memory_size=20, weight=0.25, start=3).double()
    plain = derive(lambda z: loss.loss(z, of_later), later)
    for step in range(3):
        assert loss.calls == step
        loss.eval()
        same(derive(lambda z: loss(z, of_later), later), plain, 1e-12)
        loss.train()
        loss(x + step, labels)
    loss.eval()
    held = [(row, int(y), None) for row, y in zip(x + 2, labels, strict=True)]
    wanted = derive(lambda z: expected(loss.loss, z, of_later, held, 0.25), later)
    for _ in range(2):
        same(derive(lambda z: loss(z, of_later), later), wanted, 1e-12)
    assert loss.calls == 3


def test_a_miner_picks_pairs_of_batch_and_memory(derive, same):
    miner = {"name": "multi_similarity", "epsilon": 0.2}
    loss = build("ice", memory_size=20, miner=miner).double()
    x, labels, _ = batch_of(0)
    loss(x, labels)
    now, of_now, _ = batch_of(1)
    mined = zoo.build("miners", "multi_similarity", epsilon=0.2)(now, of_now, x, labels)
    of_batch = zoo.build("miners", "batch_hard")(now, of_now)

    def wanted(z):
        inner = zoo.build("losses", "ice")
        return inner(z, of_now, of_batch) + inner(z, of_now, mined, x, labels)

    same(derive(lambda z: loss(z, of_now, of_batch), now), derive(wanted, now), 1e-12)
    with pytest.raises(UserError, match="cannot take mined pairs"):
        build("prototypical")(x, labels, of_batch)


def test_two_steps_before_one_backward():
    loss = build("ice", memory_size=12)
    x, labels, ids = batch_of(0)
    x = x.float().requires_grad_()
    total = sum(loss(x * (step + 1), labels, image_ids=(ids + step) % 30) for step in range(4))
    total.backward()
    assert x.grad.isfinite().all()
    assert not loss.memory.requires_grad


@pytest.mark.parametrize("inner", ["ice", "margin", "pml.TripletMarginLoss"])
def test_it_goes_on_from_a_state_dict(inner):
    one, other = build(inner, memory_size=18), build(inner, memory_size=18)
    for step in range(3):
        x, labels, ids = batch_of(step)
        one(x.float(), labels, image_ids=ids)
    other.load_state_dict(one.state_dict())
    for step in range(3, 6):
        x, labels, ids = batch_of(step)
        given = {"image_ids": ids}
        assert torch.equal(one(x.float(), labels, **given), other(x.float(), labels, **given))
    assert one.get_extra_state() == other.get_extra_state() == {"calls": 6, "stored": 60}


def test_a_memory_of_more_images_than_there_are():
    """It has all 30; of 10 in a batch, it compares with 20."""
    loss = build("ice", memory_size=1000)
    for start in (0, 10, 20):
        ids = torch.arange(start, start + 10)
        loss(torch.randn(10, 8), ids % 6, image_ids=ids)
    assert len(loss.memory) == 30
    assert loss.memory_ids.sort().values.tolist() == list(range(30))


WRONG = [
    {"memory_size": 0},
    {"weight": -1.0},
    {"start": -1},
    {"momentum": 1.0},
    {"momentum": -0.5},
]


@pytest.mark.parametrize("arguments", WRONG)
def test_impossible_arguments(arguments):
    with pytest.raises(UserError, match=f"{next(iter(arguments))} must be"):
        build("ice", **arguments)


def test_a_memory_that_a_batch_would_fill_is_refused():
    with pytest.raises(
        UserError, match="a memory of 20 images is not larger than a batch of 20; ma"
    ):
        build("ice", memory_size=20).check_batch(20, 8)
    build("ice", memory_size=21).check_batch(20, 8)
    with pytest.raises(
        UserError, match="of 30 images is not larger than a batch of 30; all there a"
    ):
        build("ice", memory_size=128).check_batch(30, 8)
    build("ice", memory_size=128).check_batch(29, 8)


def test_copies_do_not_empty_the_memory(derive):
    """Where a memory for all images meets a sampler that repeats some, it is used to the end."""
    loss = build("ice", memory_size=30)
    for step in range(12):
        x, labels, ids = batch_of(step, images=8)
        x, labels, ids = (torch.cat([part, part[:4]]) for part in (x, labels, ids))
        loss(x.float(), labels, image_ids=ids)
    held = loss.memory_ids[loss.age >= 0]
    assert len(held.unique()) == 30


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_no_gpu_has_to_wait(momentum):
    """Rehearsed with tensors without numbers."""
    loss = build("ice", memory_size=25, momentum=momentum).to(META)
    for _ in range(4):
        x = torch.empty(10, 8, device=META, requires_grad=True)
        labels, ids = (torch.empty(10, dtype=torch.int64, device=META) for _ in range(2))
        with no_waiting(META):
            loss(x, labels, image_ids=ids).backward()
    assert loss.stored == 40
