"""ShuffleSampler: every image, and batches of one size."""

from __future__ import annotations

from itertools import islice

import pytest

from zoo.datasets.shuffle import ShuffleSampler
from zoo.errors import UserError


@pytest.mark.parametrize(
    ("images", "batch_size"), [(12, 4), (13, 4), (15, 4), (5, 5), (7, 1), (9, 8)]
)
def test_epochs(images, batch_size):
    sampler = ShuffleSampler([0] * images, batch_size, seed=2)
    assert len(sampler) == -(-images // batch_size)
    fill = set()
    for _ in range(150):
        batches = list(islice(sampler, len(sampler)))
        drawn = [i for batch in batches for i in batch]
        assert sorted(drawn[:images]) == list(range(images))
        assert all(len(batch) == len(set(batch)) == batch_size for batch in batches)
        fill.update(drawn[images:])
    if images % batch_size:
        assert fill == set(range(images))


@pytest.mark.parametrize("batch_size", [0, -1, 6])
def test_batch_size_out_of_range(batch_size):
    with pytest.raises(UserError, match=r"sampler\.batch_size.*5"):
        ShuffleSampler([0] * 5, batch_size)
