"""Results of runs, made from given numbers."""

from __future__ import annotations

import json

from zoo.config import load_all


def result(config, recall, *, seed=0, digest="aa", dataset="glyphs", fingerprint="f0", paper=None):
    """Return a result with made-up numbers."""
    return {
        "run": f"{config}-{digest}-s{seed}",
        "config": config,
        "digest": digest,
        "seed": seed,
        "dataset": {"name": dataset, "fingerprint": fingerprint},
        "loss": "ice",
        "backbone": "convnet",
        "embedding_size": 64,
        "recall": {str(k): v for k, v in recall.items()},
        "seconds": {"training": 90.0, "evaluation": 1.0},
        "paper": paper,
    }


def results_of(name, *overrides, recall=None, seed=0, values=None):
    """Return the results of a shipped config, with a given Recall@K or the paper's."""
    found = []
    for variant in load_all(name, [*overrides, f"seed={seed}"]):
        config = variant.config
        scores = recall or {k: v for k, v in config.paper.recall.items() if v is not None}
        scores = scores if recall else {k: v / 100 for k, v in scores.items()}
        found.append(
            result(
                config.name, scores, seed=seed, digest=config.digest(), dataset=config.dataset.name
            )
            | {
                "loss": config.loss.name if config.loss and config.train.iterations else None,
                "backbone": config.model.backbone.name,
                "embedding_size": config.model.embedding_size or 1024,
                "settings": config.settings(),
                "paper": config.paper.model_dump(mode="json") if config.paper else None,
            }
        )
    return found


def write_runs(folder, *results):
    """Write a run folder for each result."""
    for r in results:
        (folder / r["run"]).mkdir(parents=True)
        (folder / r["run"] / "result.json").write_text(json.dumps(r))
