"""Measures on a GPU, with torch and FAISS, against the CPU."""

import pytest
import torch

from zoo.evaluation.at_r import at_r
from zoo.evaluation.recall import ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.fixture(scope="module")
def items():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20_000) // 7
    centres = torch.randn(int(labels[-1]) + 1, 64, generator=generator)
    return centres[labels] + 1.2 * torch.randn(len(labels), 64, generator=generator), labels


def test_the_ranks_are_equal(items):
    embeddings, labels = items
    assert torch.equal(ranks(embeddings.cuda(), labels.cuda()), ranks(embeddings, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_ranks_are_equal_in_other_types(items, dtype):
    embeddings, labels = items[0][:3000].to(dtype), items[1][:3000]
    assert torch.equal(ranks(embeddings.cuda(), labels), ranks(embeddings, labels))


def test_the_ranks_of_faiss_are_equal_up_to_its_limit(items):
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS has no GPU")
    embeddings, labels = items
    found = ranks(embeddings.cuda(), labels, backend="faiss", limit=100)
    assert torch.equal(found, ranks(embeddings, labels, limit=100))


def test_scores_at_r_are_equal(items):
    embeddings, labels = items
    for mine, theirs in zip(at_r(embeddings.cuda(), labels), at_r(embeddings, labels), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
