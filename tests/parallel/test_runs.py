"""A run of several processes: the numbers of one process, whatever is trained, and messages."""

import os
import signal
from contextlib import contextmanager

import pytest
from replicas import photographs

from zoo import UserError, runner
from zoo.progress import Reporter
from zoo.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_glyphs")]
SMALL = ["model.backbone.width=8", "model.embedding_size=16", "train.precision=fp32", "device=cpu"]
SMALL += ["sampler.classes=9", "sampler.per_class=3", "train.log_every=1"]  # 27 images
SGD = "optimizer={name: sgd, lr: 0.02}"  # Adam magnifies gradients that are nearly 0
QUIET = Reporter(quiet=True)


class Stops(Reporter):
    """Sends this process SIGTERM when an iteration is reported."""

    def __init__(self, at):
        super().__init__(quiet=True)
        self.at = at

    @contextmanager
    def training(self, *span):
        with super().training(*span) as report:
            show = report.show

            def show_and_stop(iteration, *numbers, **more):
                show(iteration, *numbers, **more)
                if iteration == self.at:
                    os.kill(os.getpid(), signal.SIGTERM)

            report.show = show_and_stop
            yield report


def train(output, *settings, reporter=QUIET):
    """Do a run with the settings of SMALL that are not given; return its result and folder."""
    keys = tuple(setting.split("=", 1)[0] for setting in settings)
    small = [setting for setting in SMALL if not setting.startswith(keys)]
    given = [*small, *settings, f"output={output}"]
    result = runner.run("ice_glyphs", given, reporter=reporter)
    return result, RunFolder(output / result["run"])


def losses(folder):
    return {line["iteration"]: line["loss"] for line in folder.metrics() if "loss" in line}


def assert_alike(mine, theirs, queries=2, rel=2e-3):
    """Compare two runs: the loss of each iteration, and Recall@K up to some queries."""
    (result, folder), (expected, other) = mine, theirs
    assert losses(folder) == pytest.approx(losses(other), rel=rel)
    for k, score in expected["recall"].items():
        assert round(abs(result["recall"][k] - score) * expected["queries"]) <= queries, k
    assert result["digest"] == expected["digest"]


@pytest.fixture(scope="module")
def alone(few_glyphs, tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), "train.iterations=100", SGD)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_run_ends_with_the_recall_of_one_process(alone, tmp_path, processes):
    settings = ("train.iterations=100", SGD, f"train.processes={processes}")
    together = train(tmp_path, *settings)
    assert_alike(together, alone)
    assert together[0]["hardware"]["processes"] == processes


def test_it_goes_on_with_another_number_of_processes(alone, tmp_path):
    for processes, at in ((1, 30), (2, 60)):
        settings = ("train.iterations=100", SGD, f"train.processes={processes}")
        with pytest.raises(runner.InterruptedRunError, match="saved at iteration"):
            train(tmp_path, *settings, reporter=Stops(at))
    assert_alike(train(tmp_path, "train.iterations=100", SGD), alone)


VARIANTS = {
    "levels, chunks and a limit": [
        "model.backbone={name: bn_inception, levels: LMH, weights: null}",
        "model.freeze=batchnorm",
        "train.chunk_size=4",
        "train.clip_norm=0.5",
        "images={resize: 40, crop: 32}",
    ],
    "a miner and held-out classes": [
        "loss=triplet_semihard",
        "miner={name: pml.TripletMarginMiner, margin: 0.1}",
        "evaluate={ks: [1, 2], every: 3, validation: 0.2, measures: [map_at_r, nmi]}",
    ],
    "a sampler that asks the network": [
        "loss=proxy_nca",
        "sampler={name: hard_class, classes: 9, pool: 20}",
    ],
    "crops of random scale": ["images={crop: 24, random_crop: resized}"],
    "bfloat16": ["train.precision=bf16", "loss={name: arcface}"],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_is_trained_the_numbers_are_those_of_one_process(tmp_path, name):
    settings = (*VARIANTS[name], "train.iterations=8", "optimizer={name: sgd, lr: 0.01}")
    loose = name == "bfloat16"
    one = train(tmp_path / "one", *settings)
    two = train(tmp_path / "two", *settings, "train.processes=2")
    assert_alike(two, one, queries=30 if loose else 5, rel=3e-2 if loose else 2e-3)
    for measure, score in one[0].get("measures", {}).items():
        assert two[0]["measures"][measure] == pytest.approx(score, abs=0.02)


def test_what_cannot_be_divided_is_one_message(tmp_path):
    with pytest.raises(UserError, match="3 images cannot be divided among 4 processes"):
        train(tmp_path, "sampler.classes=3", "sampler.per_class=1", "train.processes=4")
    with pytest.raises(UserError, match="train.sync_batchnorm=true, or model.freeze=batchnorm"):
        train(tmp_path, "train.processes=2", "train.sync_batchnorm=false")


def test_an_image_that_one_process_cannot_read_is_one_message(tmp_path):
    photographs(tmp_path / "photos", {"train": 4, "test": 3}, each=4, size=(40, 36))
    path = sorted((tmp_path / "photos" / "train").rglob("*.*"))[0]
    path.write_bytes(path.read_bytes()[:200])
    data = f"dataset={{name: image_folder, root: {tmp_path / 'photos'}}}"
    settings = (
        data,
        "images={resize: 32}",
        "sampler={name: m_per_class, classes: 4, per_class: 2}",
    )
    with pytest.raises(UserError, match="cannot be read|truncated|not an image"):
        train(tmp_path / "runs", *settings, "train.processes=2", "train.iterations=8")
