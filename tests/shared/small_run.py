"""A run of a few seconds on photographs of noise, for tests of commands that use a run."""

from __future__ import annotations

import json

import torch
from replicas import photographs

from zoo import runner
from zoo.progress import Reporter

SETTINGS = (
    "images={resize: 32}",
    "sampler.classes=3",
    "sampler.per_class=2",
    "model.backbone.width=2",
    "model.embedding_size=8",
    "train.iterations=2",
    "device=cpu",
)


def small_run(folder, *changes):
    """Return the folder of a finished run in ``folder``, where the photographs are as well."""
    photographs(folder / "photographs", {"train": 4, "test": 5}, each=4, size=(40, 36))
    data = f"dataset={{name: image_folder, root: {folder / 'photographs'}}}"
    settings = [data, *SETTINGS, f"output={folder / 'runs'}", *changes]
    result = runner.run("ice_glyphs", settings, reporter=Reporter(quiet=True))
    return folder / "runs" / result["run"]


def downgrade_to_0_1_0(run):
    """Remove what version 0.1.0 did not write from the folder of a run: digests and identity."""
    for path in (run / name for name in ("result.json", "validation.json")):
        if path.is_file():
            record = json.loads(path.read_text())
            path.write_text(json.dumps({k: record[k] for k in record.keys() - {"files", "seal"}}))
    path = run / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    torch.save({k: state[k] for k in state.keys() - {"run", "threads"}}, path)
    return run
