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
    "labels of floats": ((X, Y.float()), "labels must be a dense tensor of integers, not float32"),
    "labels of truth": ((X, Y == 1), "labels must be a dense tensor of integers, not bool"),
    "float8": ((X.to(torch.float8_e4m3fn), Y), "dense tensor of floats, not float8_e4m3fn"),
    "a square of labels": ((X, Y[:, None]), r"they are int64 of shape \(6, 1\)"),
    "a gallery without labels": ((X, Y, None, X[:2]), "ref_labels is missing"),
    "labels without a gallery": ((X, Y, None, None, Y), "ref_emb is missing"),
    "another dimension": ((X, Y, None, X[:, :3], Y), r"ref_emb of shape \(6, 3\) on cpu does not"),
    "a gallery of fewer labels": ((X, Y, None, X, Y[:3]), "each of the 6 rows of ref_emb"),
    "two of indices": ((X, Y, (A, B)), r"has 2 tensors; it takes three of equal length"),
    "unequal triplets": ((X, Y, (A, B, B[:1])), r"lengths \[2, 2, 1\]; it takes three of equal"),
    "unequal pairs": ((X, Y, (A, B[:1], A, B)), r"lengths \[2, 1, 2, 2\]; it takes four"),
    "negative indices": ((X, Y, (A, B, A - 1, B)), "negative indices"),
    "an anchor too many": ((X, Y, (A + 5, A, B)), r"\[0\] has the index 6, but embeddings has 6"),
    "a negative too many": (
        (X, Y, (A, B, A, B + 3)),
        r"\[3\] has the index 6, but the gall",
    ),
    "no tuple": ((X, Y, A), "indices_tuple must be a tuple of tensors, not int64"),
    "a dict": ((X, Y, {0: A}), "indices_tuple must be a tuple of tensors, not dict"),
    "lists of indices": ((X, Y, ([0, 1], A, B)), "must hold tensors of integers, not list"),
    "text for indices": ((X, Y, (A, B, "ab")), "must hold tensors of integers, not str"),
    "indices of floats": ((X, Y, (A.float(), A, B)), "must hold tensors of integers, not float32"),
    "indices of truth": ((X, Y, (A, B, A == 1)), "must hold tensors of integers, not bool"),
    "single indices": ((X, Y, (A[0], A[1], B[0])), r"tensors of one dimension, not of \(\)"),
    "a square of indices": ((X, Y, (A[None],) * 3), r"of one dimension, not of \(1, 2\)"),
}


@pytest.mark.parametrize("name", zoo.names("losses"))
def test_what_cannot_be_used_is_refused(build_loss, name):
    loss = build_loss(name)
    for arguments, message in WRONG.values():
        with pytest.raises(UserError, match=message):
            loss(*arguments)


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


@pytest.mark.parametrize("name", [n for n in zoo.names("losses") if not n.startswith("pml.")])
def test_the_batch_with_other_labels_is_a_gallery(build_loss, name):
    loss = build_loss(name, num_classes=3).double().eval()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    y, other = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([1, 0, 2, 1, 0, 2])
    if not loss.gallery:
        with pytest.raises(UserError, match="ref_emb has no meaning"):
            loss(x, y, None, x, other)
        return
    torch.testing.assert_close(loss(x, y, None, x, other), loss(x, y, None, x.clone(), other))


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


def test_indices_are_of_the_gallery():
    pairs = (A, B + 4, A, B + 4)
    loss = zoo.build("losses", "ice")
    assert loss(X, Y, pairs, X.repeat(2, 1), Y.repeat(2)).isfinite()
    with pytest.raises(UserError, match=r"indices_tuple\[2\] has the index 7, but embeddings"):
        loss(X, Y, (A, A, B + 4, A), X.repeat(2, 1), Y.repeat(2))


@pytest.mark.parametrize("name", zoo.names("losses"))
def test_integers_without_a_sign_are_integers(build_loss, name):
    loss = build_loss(name).eval()

    def value(*arguments):
        torch.manual_seed(0)  # some losses draw random numbers
        return loss(X, *arguments)

    mined = (A, B, B + 1)
    expected = value(Y)
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        assert torch.equal(value(Y.to(dtype)), expected), dtype
        if loss.mined:
            few = tuple(part.to(dtype) for part in mined)
            assert torch.equal(value(Y, few), value(Y, mined)), dtype


@pytest.mark.parametrize("name", zoo.names("losses"))
def test_mined_pairs_without_labels_are_taken_or_refused(build_loss, name):
    loss = build_loss(name)
    if name in ("npair_mc", "cross_batch_memory") or not loss.mined:
        with pytest.raises(UserError):
            loss(X, None, (A, B, B + 1))
    else:
        assert loss(X, None, (A, B, B + 1)).isfinite()


@pytest.mark.parametrize("name", zoo.names("losses"))
@pytest.mark.parametrize("rows", [slice(1), slice(None)], ids=["one", "all"])
def test_what_is_not_finite_gives_nan(build_loss, name, rows):
    for number in (torch.nan, torch.inf, -torch.inf):
        gives_nan(build_loss(name), rows, number)


def gives_nan(loss, rows, number):
    """Assert that a loss is NaN where some rows of a batch or a gallery are no number."""
    bad = X.clone()
    bad[rows] = number
    x = bad.clone().requires_grad_()
    value = loss(x, Y)
    value.backward()
    assert value.isnan()
    if loss.gallery:
        assert loss(X, Y, None, bad, Y).isnan()
        assert loss(X[:0], Y[:0], None, bad, Y).isnan()


WITH_WEIGHTS = (
    "normface arcface proxy_anchor soft_triple adacos adaface curricularface energy group_loss "
    "hist intra_batch l_softmax magface proxy_gml subcenter_arcface"
)


@pytest.mark.parametrize("name", WITH_WEIGHTS.split())
def test_weights_that_are_nan_are_not_hidden(build_loss, name):
    loss = build_loss(name)
    with torch.no_grad():
        next(loss.parameters()).fill_(torch.nan)
    assert loss(X, Y).isnan()


def test_labels_that_no_type_can_compare(build_loss):
    loss = build_loss("triplet_semihard")
    with pytest.raises(UserError, match="labels are uint64 and ref_labels int64"):
        loss(X, Y.to(torch.uint64), None, X, Y)
    both = Y.to(torch.uint64)
    assert torch.equal(loss(X, both, None, X, both), loss(X, Y, None, X, Y))
