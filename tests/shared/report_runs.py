"""Run folders for the tests of the report: made up, or trained quickly with hostile names."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image

import zoo
from zoo import config, runner
from zoo.progress import Reporter
from zoo.runs import identity

HOSTILE = ("<script>alert(1)</script>", "a_b & 50%", "</script><b>", "$x^{", "'\"><img src=x>")
"""Names of classes that would break a page if they were not escaped."""

NAME = "ice_<b>&"
"""A name of an experiment, as a foreign result may have it."""


class Hostile:
    """A data set of one colour for each class, with noise; the names of its classes are hostile."""

    def __init__(self, split: zoo.base.Split) -> None:
        self.class_names = [f"{name} {split}" for name in HOSTILE] * 2
        self.labels = np.repeat(np.arange(len(self.class_names)), 6)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        colour = np.array([25 * label, 255 - 25 * label, 128 * (label % 2)])
        noise = np.random.default_rng(index).integers(-80, 80, (20, 24, 3))
        return Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)), label

    def fingerprint(self):
        return "<hostile>/../.."

    def verify(self):
        return []


def trained(output, seed=0, *overrides):
    """Train for three iterations on ``Hostile``; return the folder of the run."""
    zoo.register("datasets", "hostile")(Hostile)
    settings = ["dataset={name: hostile}", "images={resize: 16, crop: null}", "device=cpu"]
    settings += ["model.backbone.width=2", "model.embedding_size=8", "train.iterations=3"]
    settings += ["sampler.classes=4", "sampler.per_class=3", "train.log_every=1"]
    settings += [f"seed={seed}", f"output={output}", "name=hostile", "evaluate.every=2"]
    checked = config.load("ice_glyphs", [*settings, *overrides])
    runner.run(checked, reporter=Reporter(quiet=True))
    folder = output / checked.run_name()
    result = json.loads((folder / "result.json").read_text()) | {"config": NAME}
    (folder / "result.json").write_text(json.dumps(identity.seal(result)))
    return folder.rename(folder.with_name(f"{NAME}-{result['digest']}-s{seed}"))


def made_up(output, name="ice_glyphs", *overrides, recall=0.5, seed=0, paper=None, **more):
    """Write the folder of a finished run of a shipped config, without a checkpoint."""
    checked = config.load(name, [*overrides, f"seed={seed}"])
    folder = output / checked.run_name()
    folder.mkdir(parents=True)
    result = {
        "run": folder.name,
        "config": checked.name,
        "digest": checked.digest(),
        "seed": seed,
        "dataset": {"name": "glyphs", "fingerprint": "f0", "classes": 2, "images": 4},
        "loss": checked.loss.name,
        "backbone": checked.model.backbone.name,
        "embedding_size": checked.model.embedding_size,
        "recall": {"1": recall, "2": (1 + recall) / 2},
        "seconds": {"training": 90.0, "evaluation": 1.0},
        "paper": paper,
        "settings": checked.settings(),
    }
    (folder / "result.json").write_text(json.dumps(result | more))
    (folder / "config.yaml").write_text(config.dump(checked))
    lines = [{"iteration": n, "loss": 1 / n, "recall": {"1": recall / 2}} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.save(folder / "ranks.npy", np.array([1, 3, 1, 2], np.int32))
    return folder
