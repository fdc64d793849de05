"""Optimiser groups, schedules, precision: what a config asks for is what is done."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import zoo.measures
from zoo import UserError, config
from zoo.config.schema import SGD, AdamW, Constant, Cosine, Linear, Step
from zoo.data.pipeline import Batch
from zoo.network.embedder import Embedder
from zoo.training.device import choose_device, choose_precision
from zoo.training.meter import Meter
from zoo.training.optimizer import learning_rate_factor, make_optimizer
from zoo.training.step import DivergedError, Trainer


@pytest.fixture
def embedder():
    return Embedder(zoo.build("backbones", "convnet", width=2), 8)


def test_every_parameter_is_in_the_group_that_it_belongs_to(embedder):
    loss = zoo.build("losses", "pml.ArcFaceLoss", num_classes=3, embedding_size=8)
    spec = SGD(
        name="sgd", lr=0.1, momentum=0.8, weight_decay=1e-5, head_multiplier=10, loss_multiplier=100
    )
    optimizer = make_optimizer(spec, embedder, loss)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "trunk": 0.1,
        "head": 1.0,
        "loss": 10.0,
    }
    everything = {id(p) for p in [*embedder.parameters(), *loss.parameters()]}
    grouped = [id(p) for group in groups.values() for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == everything
    assert {(g["momentum"], g["weight_decay"]) for g in groups.values()} == {(0.8, 1e-5)}


def test_what_is_frozen_is_not_optimised():
    frozen = Embedder(zoo.build("backbones", "convnet", width=2), 8, freeze="trunk")
    spec = AdamW(name="adamw", lr=0.1)
    optimizer = make_optimizer(spec, frozen, zoo.build("losses", "ice"))
    assert [group["name"] for group in optimizer.param_groups] == ["head"]
    assert isinstance(optimizer, torch.optim.AdamW)


SCHEDULES = [
    (Constant(), {0: 1, 50: 1, 99: 1}),
    (Cosine(name="cosine"), {0: 1, 50: 0.5, 100: 0}),
    (Cosine(name="cosine", final=0.2), {0: 1, 50: 0.6, 100: 0.2}),
    (Linear(name="linear"), {0: 1, 25: 0.75, 100: 0}),
    (Linear(name="linear", final=0.5), {100: 0.5}),
    (Step(name="step", every=30, gamma=0.1), {0: 1, 29: 1, 30: 0.1, 60: 0.01}),
    (Constant(warmup=4), {0: 0.2, 3: 0.8, 4: 1, 5: 1}),
    (Cosine(name="cosine", warmup=4), {0: 0.2, 50: 0.5}),
    (Cosine(name="cosine", over=200), {0: 1, 100: 0.5, 200: 0}),
    (Linear(name="linear", over=400), {100: 0.75}),
]


@pytest.mark.parametrize(("schedule", "wanted"), SCHEDULES, ids=lambda value: str(value)[:40])
def test_schedules(schedule, wanted):
    factor = learning_rate_factor(schedule, 100)
    for iteration, value in wanted.items():
        assert factor(iteration) == pytest.approx(value, abs=1e-12)


def test_precision_is_chosen_by_the_hardware(monkeypatch):
    cpu = torch.device("cpu")
    assert choose_precision("fp16", cpu) == "fp16"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert choose_precision("auto", cpu) == "bf16"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert choose_precision("auto", cpu) == "fp32"


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match=f"this machine has {torch.cuda.device_count()} GPUs"):
        choose_device("cuda:99")


def test_auto_takes_no_mps(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    assert choose_device("mps") == torch.device("mps")


@pytest.fixture
def without_autocast(monkeypatch):
    """Let the CPU be what mps is to torch 2.4: a kind of device for which there is no autocast."""

    def refuse(*_, **__):
        raise RuntimeError("unknown device type for autocast")

    monkeypatch.setattr(torch, "autocast", refuse)
    monkeypatch.setattr(torch, "is_autocast_enabled", refuse)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: kind != "cpu")


def test_float32_needs_no_autocast(without_autocast, embedder):
    """In training with a loss and a miner of the zoo, and in all that is measured."""
    checked = config.load("ice_glyphs", ["loss=multi_similarity", "miner=batch_hard"])
    loss, miner = zoo.build("losses", "multi_similarity"), zoo.build("miners", "batch_hard")
    trainer = Trainer(checked, embedder, loss, miner, choose_precision("fp32", torch.device("cpu")))
    images = torch.randint(0, 256, (8, 1, 32, 32), dtype=torch.uint8)
    trainer.step(Batch(0, [*range(8)], {}, slice(0, 8), images, torch.arange(8) // 2))
    embeddings = embedder.eval()(images).detach()
    assert zoo.evaluate.recall_at_k(embeddings, torch.arange(8) // 2, [1])[1] >= 0
    assert zoo.measures.measure(["map_at_r"], embeddings, torch.arange(8) // 2).values


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_other_precision_than_float32_needs_autocast(without_autocast, name):
    with pytest.raises(UserError, match=f"train.precision={name}: .* on cpu; set train.precision="):
        choose_precision(name, torch.device("cpu"))


class _Batch:
    def __init__(self, iteration):
        self.iteration = iteration
        self.indices = [iteration, 7]


@pytest.mark.parametrize(
    ("losses", "norms", "wanted"),
    [
        ([1, 2, 3], [1, 1, 1], None),
        ([1, math.nan, math.nan], [1, 1, 1], (1, "loss", [1, 7])),
        ([1, 2, math.inf], [1, 1, 1], (2, "loss", [2, 7])),
        ([1, 2, math.nan], [1, math.nan, math.nan], (1, "gradient", [1, 7])),
        ([math.nan, 2, 3], [math.nan, 1, 1], (0, "loss", [0, 7])),
    ],
)
def test_the_first_number_that_is_not_finite_is_remembered(losses, norms, wanted):
    meter = Meter(torch.device("cpu"))
    for i, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        meter.update(_Batch(i), torch.tensor(float(loss)), torch.tensor(float(norm)), True)
    assert meter.first_bad() == wanted


def test_the_mean_goes_on_after_a_checkpoint():
    meter = Meter(torch.device("cpu"))
    meter.update(_Batch(0), torch.tensor(1.0), torch.tensor(0.5), True)
    other = Meter(torch.device("cpu"))
    other.load_state_dict(meter.state_dict())
    other.update(_Batch(1), torch.tensor(2.0), torch.tensor(0.25), True)
    assert other.read() == ([1.5], 0.25)
    assert other.read()[0] == [0.0]


@pytest.mark.filterwarnings("error")
def test_fp16_may_skip_the_first_step(embedder):
    class Overflows(nn.Module):
        def forward(self, embeddings, labels):
            return (embeddings - embeddings.detach()).abs().sqrt().sum()

    spec = config.load("ice_glyphs", ["schedule={name: cosine, warmup: 4}", "optimizer.lr=1"])
    trainer = Trainer(spec, embedder, Overflows(), None, "fp16")
    before = [p.clone() for p in embedder.parameters()]
    rates = []
    for i in range(2):
        images = torch.ones(4, 1, 16, 16, dtype=torch.uint8)
        trainer.step(Batch(i, [0, 1, 2, 3], {}, slice(0, 4), images, torch.arange(4)))
        rates.append(trainer.optimizer.param_groups[0]["lr"])
    assert rates == [trainer.factor(1), trainer.factor(2)]
    assert all(map(torch.equal, before, embedder.parameters()))


def test_weights_that_are_not_finite_are_named(embedder):
    trainer = Trainer(config.load("ice_glyphs"), embedder, nn.Linear(2, 2), None, "fp32")
    trainer.check_weights()
    trainer.loss.weight.data[1, 1] = math.inf
    with pytest.raises(DivergedError, match=r"no longer finite \(loss\.weight\); try a lower"):
        trainer.check_weights()
    embedder.backbone.blocks[0][1].running_var[1] = math.nan
    with pytest.raises(DivergedError, match=r"\(backbone\.blocks\.0\.1\.running_var\)"):
        trainer.check_weights()


def test_without_a_miner_a_loss_needs_to_take_nothing_but_embeddings_and_labels(embedder):
    class TwoArguments(nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.square().mean()

    class Miner(nn.Module):
        def forward(self, embeddings, labels):
            return torch.zeros(3, 0, dtype=torch.int64)

    spec, loss = config.load("ice_glyphs"), TwoArguments()
    batch = torch.ones(4, 8, requires_grad=True), torch.arange(4)
    assert Trainer(spec, embedder, loss, None, "fp32")._losses(*batch, [0, 1, 2, 3]) == [1]
    with pytest.raises(UserError, match="ice in iteration 1 failed: TypeError: .*arguments"):
        Trainer(spec, embedder, loss, Miner(), "fp32")._losses(*batch, [0, 1, 2, 3])


def test_an_optimiser_of_the_loss_alone_is_possible():
    loss = nn.Linear(2, 2)
    frozen = Embedder(zoo.build("backbones", "convnet", width=2), None, freeze="trunk")
    optimizer = make_optimizer(SGD(name="sgd", lr=1.0), frozen, loss)
    assert [group["name"] for group in optimizer.param_groups] == ["loss"]
