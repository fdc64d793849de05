"""Training on a GPU: pinned memory, crops, precision, resuming, full memory, one and more GPUs.

Where a test is the same on the CPU, it also runs there, as a rehearsal.
"""

import math
import random

import pytest
import torch
from on_devices import CPU, GPU, META, needs_gpu, needs_two, on_each
from replicas import photographs
from stops import Stops
from torch import nn

import zoo
from zoo import config, runner
from zoo.checks import running
from zoo.data.pipeline import training_batches
from zoo.errors import GPU_MEMORY, UserError, out_of_memory
from zoo.parallel.ranks import Ranks
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder
from zoo.support.precision import full_float32
from zoo.support.randomness import random_state, set_random_state
from zoo.training import batchnorm
from zoo.training.device import choose_device, choose_precision
from zoo.training.experiment import assemble
from zoo.training.step import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]

QUIET = Reporter(quiet=True)
SMALL = ["model.backbone.width=8", "model.embedding_size=16", "sampler.classes=8"]
NUMBERED = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda:0", marks=needs_gpu),
        pytest.param(f"cuda:{max(1, torch.cuda.device_count() - 1)}", marks=needs_two),
    ],
)


def assembled(*settings):
    return assemble(config.load("ice_glyphs", [*SMALL, *settings]), QUIET)


def batches_of(experiment, device, workers=0, stop=8):
    return training_batches(
        experiment.train,
        experiment.config.images,
        experiment.sampler,
        seed=0,
        start=0,
        stop=stop,
        workers=workers,
        device=device,
    )


def trainer_of(experiment):
    return Trainer(
        experiment.config,
        experiment.embedder,
        experiment.loss,
        experiment.miner,
        experiment.precision,
    )


def steps(experiment):
    """Take some steps; return the loss of each."""
    trainer, losses = trainer_of(experiment), []
    for batch in batches_of(experiment, experiment.device):
        trainer.step(batch)
        losses += trainer.meter.read()[0]
    return losses


# ---- a step


@on_each
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(device, precision):
    losses = steps(assembled(f"device={device}", f"train.precision={precision}"))
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


@needs_gpu
def test_the_precision_is_that_of_the_hardware():
    modern = torch.cuda.get_device_capability() >= (8, 0)
    assert choose_precision("auto", GPU) == ("bf16" if modern else "fp32")


@on_each
@pytest.mark.parametrize("miner", ["semihard", "multi_similarity"])
def test_miners_pick_pairs_there(device, miner):
    losses = steps(assembled(f"device={device}", "loss=contrastive", f"miner={miner}"))
    assert all(map(math.isfinite, losses))


@needs_gpu
@pytest.mark.parametrize("loss", [n for n in zoo.names("losses") if not n.startswith("pml.")])
def test_losses_are_those_of_the_cpu(loss):
    """By the check that also takes the loss to a GPU, if there is one."""
    (record,) = running.run(loss, only=["check_moves"]).records
    assert record.outcome == "passed", record


@NUMBERED
def test_a_numbered_gpu_has_it_all(device):
    experiment = assembled(f"device={device}")
    steps(experiment)
    tensors = [*experiment.embedder.state_dict().values(), *experiment.loss.state_dict().values()]
    assert {str(tensor.device) for tensor in tensors} == {device}


@on_each
def test_float32_is_full_there(device):
    """Even where the caller allows TF32 or autocast."""
    x = torch.rand(64, 64, device=device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device.type, torch.bfloat16), full_float32(device):
            product = x @ x
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), x.double() @ x.double(), rtol=1e-5, atol=0)


# ---- batches


@on_each
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_pinned_memory(device, workers):
    batch = next(batches_of(assembled("device=cpu"), device, workers))
    pinned = [batch.images.is_pinned(), batch.labels.is_pinned()]
    assert pinned == [device.type == "cuda"] * 2


@pytest.mark.parametrize(
    ("device", "crops_on"),
    [pytest.param(META, CPU, id="cpu"), pytest.param(GPU, GPU, marks=needs_gpu, id="cuda")],
)
@pytest.mark.parametrize("cache", [True, False])
def test_crops_are_those_of_the_cpu(device, crops_on, cache, tmp_path, monkeypatch):
    """Whole images, also from the cache, are cropped there by a gather."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    root = photographs(tmp_path / "photos", {"train": 8, "test": 4}, each=4, size=(40, 40))
    given = [f"dataset={{name: image_folder, root: {root}}}", "device=cpu"]
    given.append(f"images={{resize: 40, crop: 24, pad: 3, mirror: true, cache: {cache}}}".lower())
    both = []
    for kind, where in ((CPU, CPU), (device, crops_on)):
        batch = next(batches_of(assembled(*given), kind))
        assert (batch.crops is not None) == (cache and kind != CPU)
        images, labels = batch.on(where)
        assert images.device.type == labels.device.type == where.type
        both.append(images.cpu())
    assert torch.equal(*both)


# ---- runs


def run(output, *settings):
    given = [*SMALL, "train.iterations=30", "train.precision=fp32", f"output={output}", *settings]
    result = runner.run("ice_glyphs", given, reporter=QUIET)
    return result, RunFolder(output / result["run"])


@on_each
def test_a_stopped_run_ends_as_if_it_had_not_been(device, tmp_path):
    given = (f"device={device}", "loss=ice")
    whole, _ = run(tmp_path / "whole", *given)
    with pytest.raises(runner.InterruptedRunError):
        runner.run(
            "ice_glyphs",
            [*SMALL, "train.iterations=30", "train.precision=fp32", *given, f"output={tmp_path}"],
            reporter=Stops(10),
        )
    again, _ = run(tmp_path, *given)
    for k, score in whole["recall"].items():
        assert abs(again["recall"][k] - score) * whole["queries"] <= 0.02 * whole["queries"]


@on_each
def test_random_numbers_go_on_where_they_were(device):
    saved = random_state(device)
    drawn = [(torch.rand(3, device=device).tolist(), random.random()) for _ in range(2)]
    assert drawn[0] != drawn[1]
    set_random_state(saved, device)
    assert (torch.rand(3, device=device).tolist(), random.random()) == drawn[0]
    assert len(saved["cuda"]) == (device.type == "cuda")


@needs_two
def test_random_numbers_go_on_on_another_gpu():
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    saved = random_state(first)
    drawn = torch.rand(3, device=first).tolist()
    set_random_state(saved, second)
    assert torch.rand(3, device=second).tolist() == drawn


@needs_gpu
def test_a_gpu_ends_near_a_cpu(tmp_path):
    (on_cpu, _), (on_gpu, _) = (run(tmp_path / d, f"device={d}") for d in ("cpu", "cuda"))
    assert on_gpu["recall"]["1"] == pytest.approx(on_cpu["recall"]["1"], abs=0.05)
    assert on_gpu["hardware"]["device"] == torch.cuda.get_device_name()


@needs_gpu
def test_a_plan_gives_each_run_a_gpu(tmp_path, command):
    """A free one, which is the only one that the run sees; tests/plans has the rest."""
    given = [*SMALL, "train.iterations=3", f"output={tmp_path}", "device=auto"]
    status, _, said = command("run", "ice_glyphs", "--seeds", "0,1,2", *given)
    assert status == 0, said
    folders = list(map(RunFolder, tmp_path.glob("*-s?")))
    assert len(folders) == 3
    devices = {folder.result()["hardware"]["device"] for folder in folders}
    assert devices <= {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}


# ---- full memory


@needs_gpu
def test_full_memory_is_known():
    with pytest.raises(torch.cuda.OutOfMemoryError) as full:
        torch.empty(1 << 50, dtype=torch.uint8, device=GPU)
    assert out_of_memory(full.value) == GPU_MEMORY


@on_each
def test_full_memory_is_one_message(device, tmp_path, command, monkeypatch):
    """On the CPU, a stand-in raises what torch raises for a GPU."""

    def fill(*arguments):
        if device == GPU:
            torch.empty(1 << 50, dtype=torch.uint8, device=GPU)
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 PiB")

    monkeypatch.setattr(nn.Conv2d, "forward", fill)
    given = [*SMALL, "train.iterations=3", f"output={tmp_path}", f"device={device}"]
    status, _, said = command("run", "ice_glyphs", *given)
    assert status == 1
    assert said.splitlines()[-1].endswith(GPU_MEMORY)


# ---- several processes


@needs_two
def test_two_gpus_are_as_one(tmp_path):
    """By NCCL, with torch's synchronised batch normalisation."""
    (one, _), (two, _) = (
        run(tmp_path / str(n), "device=cuda", f"train.processes={n}") for n in (1, 2)
    )
    for k, score in one["recall"].items():
        assert abs(two["recall"][k] - score) * one["queries"] <= 0.02 * one["queries"]


@needs_two
def test_two_gpus_go_on_as_one(tmp_path):
    given = ["train.iterations=30", "train.precision=fp32", f"output={tmp_path}", "device=cuda"]
    with pytest.raises(runner.InterruptedRunError):
        runner.run("ice_glyphs", [*SMALL, *given, "train.processes=2"], reporter=Stops(10))
    result, _ = run(tmp_path, "device=cuda")
    alone, _ = run(tmp_path / "alone", "device=cuda")
    assert result["recall"]["1"] == pytest.approx(alone["recall"]["1"], abs=0.03)


def test_batch_normalisation_is_torchs_on_gpus():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
    names = list(network.state_dict())
    batchnorm.synchronise(network, Ranks(), GPU, allowed=True)
    assert isinstance(network[1], nn.SyncBatchNorm)
    assert list(network.state_dict()) == names


@pytest.mark.parametrize("kind", [CPU, GPU], ids=str)
def test_a_layer_that_does_more_is_not_replaced(kind):
    """Such as timm's, which has the activation in it: it would be lost."""

    class NormAndAct(nn.BatchNorm2d):
        def forward(self, input):
            return super().forward(input).relu()

    with pytest.raises(UserError, match="0 is a NormAndAct, .* model.freeze=batchnorm"):
        batchnorm.synchronise(nn.Sequential(NormAndAct(2)), Ranks(), kind, allowed=True)


def seen_by_one_of(processes, gpus, monkeypatch):
    """Let this be the last of some processes, on a machine that seems to have GPUs."""
    ranks = Ranks()
    ranks.size = processes
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(processes - 1))
    return ranks, chosen


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_gets_a_gpu(name, monkeypatch):
    ranks, chosen = seen_by_one_of(3, 4, monkeypatch)
    assert choose_device(name, ranks) == torch.device("cuda:2")
    assert chosen == ["cuda:2"]
    assert choose_device("cpu", ranks) == CPU


@pytest.mark.parametrize(
    ("name", "gpus", "said"),
    [
        (
            "cuda",
            2,
            "3 processes need a GPU each, and this machine has 2; start 2, or set dev",
        ),
        (
            "auto",
            1,
            "3 processes need a GPU each, and this machine has 1; start 1, or set dev",
        ),
        ("cuda:1", 4, "device=cuda:1: several processes need device=cuda, a GPU each, or cpu"),
    ],
)
def test_too_few_gpus_are_one_message(name, gpus, said, monkeypatch):
    ranks, chosen = seen_by_one_of(3, gpus, monkeypatch)
    with pytest.raises(UserError, match=said):
        choose_device(name, ranks)
    assert chosen == []
