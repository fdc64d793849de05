"""Every number of every loss and miner can change while it is used, or it is said why not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import zoo
from zoo import registry, runner
from zoo.config import load
from zoo.config.schema import ComponentSpec
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.registry import rehearsal
from zoo.runs.folder import RunFolder
from zoo.training import loop
from zoo.training.scheduled import Scheduled

SIZES = {"num_classes": 4, "embedding_size": 6, "num_images": 12, "level_sizes": [2, 4]}
SIZES["space"] = zoo.build("spaces", "hyperbolic")
LABELS = torch.arange(12) % 4
SHAPE = "a schedule changes the shape of what it learns; give a fixed value"
START = r"a schedule changes the start of what it learns \(\w+\), which has no effect later"
FIXED = {
    ("a_bier", "hidden"): SHAPE,
    ("daml", "hidden"): SHAPE,
    ("dreml", "seed"): "a schedule would change meta behind what was learned with it",
    ("hyperspherical_prototypes", "seed"): "would change prototypes behind what was learned",
    ("hyperspherical_prototypes", "steps"): "would change prototypes behind what was learned",
    ("dreml", "meta_classes"): "its schedules change nothing in it; give fixed values",
    ("dvml", "hidden"): SHAPE,
    ("hdml", "hidden"): SHAPE,
    ("htl", "levels"): SHAPE,
    ("intra_batch", "layers"): SHAPE,
    ("margin", "beta"): START,
    ("multibatch", "theta"): START,
    ("potential_field", "proxies_per_class"): SHAPE,
    ("proxy_gml", "proxies_per_class"): SHAPE,
    ("siglip", "bias"): START,
    ("siglip", "scale"): START,
    ("subcenter_arcface", "sub_centers"): SHAPE,
    ("normface", "scale"): START,
    ("tadam", "alpha"): START,
    ("tadam_conditioned", "alpha"): START,
    ("soft_triple", "centers_per_class"): SHAPE,
    ("scalable_nca", "memory_size"): SHAPE,
}


def numbers(kind):
    for name in registry.names(kind):
        for parameter in registry.parameters(kind, name):
            if type(parameter.default) in (int, float) and parameter.name not in SIZES:
                yield name, parameter.name, parameter.default


def scheduled(kind, name, arguments):
    make = partial(registry.assemble, kind, name)
    sizes = SIZES if kind == "losses" else {}
    torch.manual_seed(0)
    used = make({k: v["from"] if isinstance(v, dict) else v for k, v in arguments.items()}, sizes)
    spec = ComponentSpec(name=name, **arguments)
    return used, Scheduled(kind, spec, used, lambda given: make(given, sizes))


def other(default):
    """Return a number that most arguments may have: near the default, below it if it is a share."""
    if isinstance(default, int):
        return default + 1
    return default * 0.75 if default else 0.25


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument", "default"), [*numbers("losses")])
def test_a_number_of_a_loss(name, argument, default):
    arguments = {argument: {"from": default, "to": other(default), "at": 0.5}}
    arguments |= {
        key: value
        for key, value in registry.load("losses", name).check_arguments.items()
        if key != argument
    }
    if (name, argument) in FIXED:
        with pytest.raises(UserError, match=FIXED[name, argument]):
            scheduled("losses", name, arguments)
        return
    used, schedule = scheduled("losses", name, arguments)
    trial = rehearsal.Rehearsal.alone(6, LABELS, (name, ""))
    schedule.rehearse(partial(rehearsal.output, "losses", trial))
    before = {key: value.clone() for key, value in used.named_parameters()}
    schedule.set(0.4)
    schedule.set(0.6)
    fixed = {k: v["to"] if isinstance(v, dict) else v for k, v in arguments.items()}
    torch.manual_seed(0)
    fresh = registry.assemble("losses", name, fixed, SIZES)
    values = []
    for loss in (used, fresh):
        torch.manual_seed(0)  # some draw random numbers
        values.append(rehearsal.output("losses", trial, loss))
    assert values[0] == values[1]
    assert all(torch.equal(value, before[key]) for key, value in used.named_parameters())


@pytest.mark.parametrize(("name", "argument", "default"), [*numbers("miners")])
def test_a_number_of_a_miner(name, argument, default):
    arguments = {argument: {"from": default, "to": other(default), "at": 0.5}}
    _, schedule = scheduled("miners", name, arguments)
    trial = rehearsal.Rehearsal.alone(6, LABELS, ("", name))
    schedule.rehearse(partial(rehearsal.output, "miners", trial))


def test_what_was_learned_stays():
    used, schedule = scheduled("losses", "proxy_nca", {"scale": {"from": 1.0, "to": 9.0}})
    with torch.no_grad():
        used.proxies.add_(1.0)
    before = used.proxies.clone()
    schedule.set(0.5)
    assert used.scale == 5.0
    assert torch.equal(used.proxies, before)


class Hidden(torch.nn.Module):
    """Keeps its argument where nobody can see it."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.measure = lambda x: scale * x.square().mean()

    def forward(self, embeddings, labels):
        return self.measure(embeddings)


class HalfHidden(Hidden):
    def __init__(self, scale: float = 1.0):
        super().__init__(scale)
        self.scale = scale


@pytest.mark.parametrize(
    ("loss", "says"),
    [(Hidden, "its schedules change nothing in it"), (HalfHidden, "a form that cannot be changed")],
)
def test_a_hidden_argument_is_refused_before_training(
    loss, says, tmp_path, few_glyphs, monkeypatch
):
    monkeypatch.setattr(registry.components, "_registered", {})
    zoo.register("losses", "hidden")(loss)
    with pytest.raises(UserError, match=says):
        run(tmp_path, "loss={name: hidden, scale: {from: 1, to: 2}}")


def run(tmp_path, *more):
    small = ["model.backbone.width=4", "model.embedding_size=16", "sampler.classes=8"]
    small += ["train={iterations: 6, checkpoint_every: 2, log_every: 1}", "device=cpu"]
    result = runner.run(
        load("ice_glyphs", [*small, f"output={tmp_path}", *more]), reporter=Reporter(quiet=True)
    )
    return RunFolder(tmp_path / result["run"])


@pytest.mark.parametrize(
    "settings",
    [
        ["loss={name: heated_up, scale: {from: 4, to: 32, shape: geometric}}"],
        [
            "loss={name: contrastive, margin: {from: 0.5, to: 1, at: 0.5}}",
            "miner={name: pair_margin, pos_margin: {from: 0.2, to: 0.1}}",
        ],
    ],
)
def test_a_run_that_was_stopped_ends_bit_for_bit_the_same(
    settings, tmp_path, few_glyphs, monkeypatch
):
    whole = run(tmp_path / "whole", *settings)
    batches = loop.training_batches

    def stop(*arguments, **options):
        for batch in batches(*arguments, **options):
            yield batch
            if batch.iteration == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", *settings)
    stopped = run(tmp_path / "stopped", *settings)
    assert stopped.metrics() == whole.metrics()
    fixed = run(
        tmp_path / "fixed",
        *(s.replace("{from: 4, to: 32, shape: geometric}", "4") for s in settings),
    )
    assert fixed.metrics()[0]["loss"] == whole.metrics()[0]["loss"]
