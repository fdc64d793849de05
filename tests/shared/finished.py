"""A small finished run on a folder of photographs, for tests that use its network."""

from __future__ import annotations

from replicas import photographs

from zoo import runner
from zoo.progress import Reporter

QUIET = Reporter(quiet=True)


def run_on_photographs(here, *changes):
    """Train two steps on images of noise in ``here/photos``; return the folder of the run."""
    if not (here / "photos").exists():
        photographs(here / "photos", {"train": 4, "test": 3}, each=4, size=(40, 36))
    settings = {
        "dataset.root": here / "photos",
        "model.backbone": "{name: convnet, width: 4, blocks: 3}",
        "model.embedding_size": 8,
        "images": "{resize: 40, crop: 32}",
        "train.iterations": 2,
        "sampler": "{name: m_per_class, classes: 4, per_class: 2}",
        "output": here / "runs",
        "device": "cpu",
        **dict(change.split("=", 1) for change in changes),
    }
    given = [f"{key}={value}" for key, value in settings.items()]
    result = runner.run("ice_folder", given, reporter=QUIET)
    return here / "runs" / result["run"]
