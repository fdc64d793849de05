"""What no loss can use is refused in words, and what looks odd but is fine is taken."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo import UserError

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
A, B = torch.tensor([0, 1]), torch.tensor([2, 3])

WRONG = {
    "a list": (([[1.0, 2.0]], Y), "embeddings must be a dense tensor of floats, not list"),
    "integers": ((Y[:, None], Y), "embeddings must be a dense tensor of floats, not int64"),
    "complex": ((X + 1j, Y), "embeddings must be a dense tensor of floats, not complex64"),
    "sparse": ((X.to_sparse(), Y), "not float32, sparse_coo"),
    "one dimension": ((X[:, 0], Y), r"of shape \(items, dimensions\), not \(6,\)"),
    "no dimensions": ((X[:, :0], Y), r"of shape \(items, dimensions\), not \(6, 0\)"),
    "no labels": ((X,), "labels are missing"),
    "fewer labels": ((X, Y[:5]), "one integer for each of the 6 rows of embeddings"),
    "labels of floats": ((X, Y.float()), "labels must be a tensor of integers, not float32"),
    "labels of truth": ((X, Y == 1), "they are bool of shape"),
    "a square of labels": ((X, Y[:, None]), r"they are int64 of shape \(6, 1\)"),
    "a gallery without labels": ((X, Y, None, X[:2]), "ref_labels is missing"),
    "labels without a gallery": ((X, Y, None, None, Y), "ref_emb is missing"),
    "another dimension": ((X, Y, None, X[:, :3], Y), r"ref_emb of shape \(6, 3\) on cpu does not"),
    "a gallery of fewer labels": ((X, Y, None, X, Y[:3]), "each of the 6 rows of ref_emb"),
    "two of indices": ((X, Y, (A, B)), r"has 2 tensors; it takes three of equal length"),
    "unequal triplets": ((X, Y, (A, B, B[:1])), r"lengths \[2, 2, 1\]; it takes three of equal"),
    "unequal pairs": ((X, Y, (A, B[:1], A, B)), r"lengths \[2, 1, 2, 2\]; it takes four"),
    "negative indices": ((X, Y, (A, B, A - 1, B)), "negative indices"),
}


@pytest.mark.parametrize("name", zoo.names("losses"))
@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_used_is_refused(build_loss, name, arguments, message):
    with pytest.raises(UserError, match=message):
        build_loss(name)(*arguments)


def test_a_gallery_of_another_type_is_taken():
    loss = zoo.build("losses", "ice")
    expected = loss(X, Y, ref_emb=X + 1, ref_labels=Y)
    assert float(loss(X, Y, ref_emb=(X + 1).double(), ref_labels=Y)) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_the_batch_as_its_own_gallery_is_the_batch():
    loss = zoo.build("losses", "ice")
    for x in (X, X.bfloat16()):
        assert torch.equal(loss(x, Y, ref_emb=x, ref_labels=Y), loss(x, Y))


@pytest.mark.parametrize(
    ("x", "y", "gallery"),
    [(X[:0], Y[:0], None), (X, Y, (X[:0], Y[:0])), (X[:0], Y[:0], (X, Y))],
    ids=["no_batch", "no_gallery", "no_queries"],
)
def test_nothing_gives_zero_with_a_graph(x, y, gallery):
    x = x.clone().requires_grad_()
    loss = zoo.build("losses", "ice")(x, y, None, *(gallery or ()))
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_mined_pairs_need_no_labels():
    pairs = zoo.build("miners", "pml.MultiSimilarityMiner", epsilon=2.0)(X, Y)
    loss = zoo.build("losses", "ice")
    assert float(loss(X, None, pairs)) == pytest.approx(float(loss(X, Y)))
