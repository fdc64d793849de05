"""How often each test reports a difference between two networks that are equally good.

    python benchmarks/false_positives.py [--pairs 2000] [--json PATH]

Pairs of networks are simulated on test sets of realistic size. Each query has a difficulty, the
same for both networks; if queries are independent, nothing else matters. If they are not, each
network is also better at some classes and worse at others by chance, like a network that was
trained once. Neither network is better on average, so each test should report no difference in 95 %
of the pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from _measure import write

from zoo.comparing import significance
from zoo.comparing.significance import bootstrap, mcnemar, sign_flip
from zoo.support import environment

SIZES = {"birds": (42, 59), "CUB-200-2011": (100, 59), "a tenth of SOP": (1_132, 5)}
"""Numbers of classes in a test split, and of images per class."""

DRAWS = 2_000
"""Samples of each bootstrap; `zoo compare` draws more, which changes little on average."""

BY_CLASS = {"no": 0.0, "a little": 0.3, "much": 0.8}
"""Standard deviation, in logits, of a network's strength at a class."""

TESTS = ("McNemar, exact", "McNemar, mid-p", "interval, queries", "classes", "interval, classes")


def gains(rng: np.random.Generator, classes: int, each: int, spread: float) -> np.ndarray:
    """Return (classes, each): 1 or -1 where only the first or second network answers a query."""
    difficulty = 2 + 2 * rng.standard_normal((classes, each))  # Recall@1 of about 0.8
    hits = []
    for _ in "ab":
        logit = difficulty + spread * rng.standard_normal((classes, 1))
        hits.append(rng.random((classes, each)) < 1 / (1 + np.exp(-logit)))
    return hits[0].astype(np.int64) - hits[1]


def called_different(ahead: np.ndarray) -> list[bool]:
    """Return for each test whether it calls the pair different."""
    exact, mid = mcnemar(int((ahead > 0).sum()), int((ahead < 0).sum()))
    flat, by_class = ahead.ravel(), ahead.sum(1)
    low, high = bootstrap(flat, np.ones_like(flat))
    low_class, high_class = bootstrap(by_class, np.full_like(by_class, ahead.shape[1]))
    return [
        exact < 0.05,
        mid < 0.05,
        not low <= 0 <= high,
        sign_flip(by_class) < 0.05,
        not low_class <= 0 <= high_class,
    ]


def main() -> None:
    """Simulate, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2_000)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    significance.DRAWS = DRAWS
    rows: list[dict[str, Any]] = []
    print(f"{'':28}" + "".join(f"{test:>20}" for test in TESTS))
    for data, (classes, each) in SIZES.items():
        for word, spread in BY_CLASS.items():
            rng = np.random.default_rng(0)
            pairs = [called_different(gains(rng, classes, each, spread)) for _ in range(args.pairs)]
            rates = np.mean(pairs, axis=0).tolist()
            named = dict(zip(TESTS, rates, strict=True))
            rows.append({"data": data, "by_class": word, "rates": named})
            print(
                f"{data + ', ' + word:28}" + "".join(f"{100 * r:19.1f}%" for r in rates), flush=True
            )
    versions = environment.versions()
    write(args.json, {"pairs": args.pairs, "numpy": versions["numpy"], "rows": rows})


if __name__ == "__main__":
    main()
