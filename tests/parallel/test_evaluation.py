"""Several processes that measure together find what one finds, item by item."""

import numpy as np
import pytest
import torch
from in_processes import call, evaluate, evaluate_wrongly, with_fewer

from zoo.evaluation.at_r import at_r
from zoo.evaluation.measures import measure
from zoo.evaluation.recall import ranks


def made_up(seed, n, classes, d=8, m=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, d, generator=generator)
    noise = 0.7 * torch.randn(n, d, generator=generator)
    case = {"embeddings": (centres[labels] + noise).to(dtype), "labels": labels}
    if m is not None:
        case["gallery_labels"] = torch.randint(classes + 3, (m,), generator=generator) - 2
        case["gallery"] = torch.randn(m, d, generator=generator).to(dtype)
    return case


def cases():
    yield "many classes", made_up(0, 301, 40)
    yield "tiles of 7", made_up(1, 100, 9) | {"block": 7}
    yield "one class", made_up(2, 30, 1)
    yield "two classes, of which one is large", made_up(3, 60, 2)
    yield "each alone", made_up(4, 12, 5) | {"labels": torch.arange(12)}
    tied = made_up(5, 90, 12)
    tied["embeddings"][::3] = tied["embeddings"][0]
    yield "ties", tied
    yield "all the same", made_up(6, 40, 8) | {"embeddings": torch.ones(40, 8)}
    yield "uneven parts", made_up(7, 80, 10) | {"cuts": [0, 3, 77, 80]}
    yield "in double precision", made_up(8, 70, 6, dtype=torch.float64)
    yield "a gallery", made_up(9, 50, 7, m=90)
    yield "a gallery of fewer items than queries", made_up(10, 90, 7, m=11)
    large = made_up(11, 60, 5)
    large["labels"] = large["labels"].numpy().astype(np.uint64) + np.uint64(2**63)
    yield "labels beyond int64", large


CASES = dict(cases())
pytestmark = pytest.mark.slow
PIECE = 7  # a shard passes round in several pieces


def test_all_is_as_found_by_one_process():
    """By two processes and by three, which are started once for all cases."""
    cases = {
        n: {k: case for k, case in CASES.items() if len(case.get("cuts", range(n + 1))) == n + 1}
        for n in (2, 3)
    }
    arguments = {n: (list(some.values()), PIECE) for n, some in cases.items()}
    found = call(3, with_fewer, evaluate, arguments)
    for n, some in cases.items():
        assert len(some) >= len(CASES) - 1
        for (name, case), outcome in zip(some.items(), found[n], strict=True):
            assert_as_alone(case, *outcome, f"{name}, {n} processes")


def some(n, d=4, dtype=torch.float32):
    return torch.ones(n, d, dtype=dtype), torch.arange(n)


WRONG = {
    "process 2 of 2: embeddings are empty: got float32 of shape (0, 4)": [some(3), some(0)],
    "process 1 of 2: 3 embeddings do not match 2 labels": [(some(3)[0], some(2)[1]), some(3)],
    "process 2 of 2: embeddings are NaN or infinite in 3 of 3 items, by index: 0, 1, 2": [
        some(3),
        (some(3)[0] * torch.nan, some(3)[1]),
    ],
    "process 2 of 2: gallery is empty: got float32 of shape (0, 4)": [
        (*some(3), *some(2)),
        (*some(3), *some(0)),
    ],
    "processes have items of different kinds: float32 of 4 dimensions in process 1, float64 of 5 "
    "dimensions in process 2": [some(3), some(3, 5, torch.float64)],
    "processes have items of different kinds: float32 of 4 dimensions in process 1, float32 of 4 "
    "dimensions with a gallery of float32 of 4 dimensions in process 2": [
        some(3),
        (*some(3), *some(2)),
    ],
}


def test_what_one_process_gave_wrongly_all_are_told_at_once():
    cases = [{"of": of} for of in WRONG.values()]
    cases.append({"of": [some(3), some(0)], "measures": ["nmi"]})
    cases.append({"of": [some(3), some(0)], "measures": ["map_at_r"]})
    expected = [*WRONG, *[next(iter(WRONG))] * 2]
    assert call(2, evaluate_wrongly, cases) == [[said] * 2 for said in expected]


def assert_as_alone(case, of_ranks, of_r, of_measures, name):
    case = {key: value for key, value in case.items() if key != "cuts"}
    items = case.pop("embeddings"), case.pop("labels")
    assert torch.equal(of_ranks, ranks(*items, **case)), name
    for ours, theirs in zip(of_r, at_r(*items, **case), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0, msg=name)
    if of_measures:
        expected = measure(["nmi", "map_at_r"], *items).values
        assert of_measures == pytest.approx(expected, rel=1e-12), name
