"""Recall@K against loops written from the definition, and the known faults of evaluators."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor

import zoo.evaluate
from zoo.errors import UserError
from zoo.evaluate import NO_MATCH, Recall, ranks, recall_at_k
from zoo.evaluation import faiss as evaluation_faiss
from zoo.evaluation import recall
from zoo.evaluation.at_r import at_r

KS = (1, 2, 5, 10)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def unit(vector):
    largest = np.abs(vector).max()
    if largest == 0:
        return vector
    vector = vector / largest  # or squares overflow
    return vector / np.sqrt(np.dot(vector, vector))


def by_definition(embeddings, labels, gallery=None, gallery_labels=None):
    """r(q), one pair at a time."""
    own = gallery is None
    queries = [unit(row) for row in np.asarray(embeddings.double())]
    items = queries if own else [unit(row) for row in np.asarray(gallery.double())]
    item_labels = (labels if own else gallery_labels).tolist()
    found = []
    for q, (query, label) in enumerate(zip(queries, labels.tolist(), strict=True)):
        mine, others = [], []
        for i, (item, item_label) in enumerate(zip(items, item_labels, strict=True)):
            if item_label != label:
                others.append(np.dot(query, item))
            elif not (own and i == q):
                mine.append(np.dot(query, item))
        rank = 1 + sum(cosine >= max(mine) - 1e-12 for cosine in others) if mine else NO_MATCH
        found.append(rank)
    return found


def random(n, d=8):
    return torch.randn(n, d)


def duplicates(n, d=4):
    return torch.randn(n, d).round()[torch.randint(0, n // 3 + 1, (n,))]


def grid(n, d=2):
    return torch.randint(-1, 2, (n, d)).float()  # few directions, and zero vectors


def scaled(n, d=6):
    return torch.randn(3, d)[torch.arange(n) % 3] * torch.rand(n, 1).add(0.1)


def collapsed(n, d=5):
    return torch.randn(1, d).expand(n, d)


def nearly_collapsed(n, d=5):
    return torch.randn(1, d).double() + 1e-5 * torch.randn(n, d).double()


def near_ties(n, d=16):
    return duplicates(n, d).double() + 1e-8 * torch.randn(n, d).double()


def huge_and_tiny(n, d=6):
    return torch.randn(n, d).double() * torch.logspace(-300, 300, n, dtype=torch.float64)[:, None]


DATA = [random, duplicates, grid, scaled, collapsed, nearly_collapsed, near_ties, huge_and_tiny]


def few_classes(n):
    return torch.randint(0, 4, (n,))


def small_classes(n):
    return torch.arange(n) // 3  # and what remains


def mixed_sizes(n):
    return (torch.rand(n) ** 3 * n / 2).long()  # large classes, small ones and singletons


def one_class(n):
    return torch.zeros(n, dtype=torch.long)


def singletons(n):
    return torch.arange(n)


LABELS = [few_classes, small_classes, mixed_sizes, one_class, singletons]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# The definition ---------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", LABELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)
def test_agrees_with_the_definition(data, labelled):
    for n in (1, 2, 31):
        order = torch.randperm(n)
        x, y = data(n), labelled(n)[order]
        expected = by_definition(x, y)
        for block in (None, 7, 1):
            assert ranks(x, y, block=block).tolist() == expected, (n, block)
        result = recall_at_k(x, y, KS)
        assert result == {k: np.mean([r <= k for r in expected]) for k in KS}
        assert result.unmatched == sum(r == NO_MATCH for r in expected)


@pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)
def test_queries_and_gallery(data):
    x, y = data(50), mixed_sizes(50)
    q, g = slice(0, 20), slice(15, 50)  # with items that are in both
    expected = by_definition(x[q], y[q], x[g], y[g])
    for block in (None, 7, 1):
        found = ranks(x[q], y[q], gallery=x[g], gallery_labels=y[g], block=block)
        assert found.tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_types(dtype, device):
    x, y = duplicates(60).to(dtype), few_classes(60)
    assert ranks(x.to(device), y.to(device)).tolist() == by_definition(x, y)


@pytest.mark.parametrize("device", DEVICES)
def test_several_tiles_of_the_default_size(device):
    x, y = torch.randn(1500, 32), torch.arange(1500) // 4
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    cosines, same = unit @ unit.T, y[:, None] == y
    best = cosines.masked_fill(~same, -2).fill_diagonal_(-2).amax(1, keepdim=True)
    expected = 1 + ((cosines >= best - 1e-12) & ~same).sum(1)
    found = ranks(x.to(device), y.to(device))
    assert found.tolist() == expected.tolist()
    assert found.device.type == "cpu"
    assert found.dtype == torch.int32


def test_close_pairs_one_by_one_or_by_products(monkeypatch):
    x, y = near_ties(60), few_classes(60)
    for dense in (0, 1 << 40):
        monkeypatch.setattr(recall, "_DENSE", dense)
        assert ranks(x, y, block=16).tolist() == by_definition(x, y)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads):
    x, y = near_ties(90), mixed_sizes(90)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert ranks(x, y, block=16).tolist() == by_definition(x, y)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_under_inference_mode():
    x, y = near_ties(90), mixed_sizes(90)
    expected = ranks(x, y, block=16)
    with torch.inference_mode():
        assert torch.equal(ranks(x.clone(), y, block=16), expected)


def test_order_of_items_does_not_matter():
    x, y = near_ties(80), mixed_sizes(80)
    order = torch.randperm(80)
    assert torch.equal(ranks(x, y)[order], ranks(x[order], y[order]))


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u4", "i8", "u8", ">i8"])
def test_integer_types_of_labels(dtype):
    x, y = random(30), few_classes(30)
    assert torch.equal(ranks(x.numpy(), y.numpy().astype(dtype)), ranks(x, y))


def test_labels_are_compared_as_integers():
    x = random(30)
    for base in (2**24, 2**53, -(2**62), -2):  # float32 merges the first, float64 the second
        y = base + torch.arange(30) % 5
        assert ranks(x, y).tolist() == by_definition(x, y)
        assert recall_at_k(x, torch.arange(30) + base, KS).unmatched == 30


def test_arrays_of_any_layout():
    x, y = random(30), few_classes(30)
    expected = ranks(x, y)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    backwards = x.numpy()[::-1].copy()[::-1]
    wide = torch.stack([x, x], 2)[..., 0]
    for given in (frozen, backwards, wide, x.numpy().astype(">f4"), x.clone().requires_grad_()):
        assert torch.equal(ranks(given, y), expected)


# Faults of others -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", zoo.evaluate.BACKENDS)
@pytest.mark.parametrize("noise", [0, 1e-9])
def test_collapsed_embedding_scores_zero(noise, backend):
    if backend == "faiss":
        pytest.importorskip("faiss")
    x = torch.ones(200, 16).double() + noise * torch.randn(200, 16)
    result = recall_at_k(x, torch.arange(200) // 10, (1, 10, 100), backend=backend)
    assert result == {1: 0.0, 10: 0.0, 100: 0.0}


def test_zero_vectors_are_alike():
    x, y = torch.zeros(4, 3), torch.tensor([0, 0, 1, 1])
    assert ranks(x, y).tolist() == [3, 3, 3, 3]


def test_scale_is_no_difference():
    x, y = random(20, 3), torch.arange(20)
    both, labels = torch.cat([x, 3 * x]), torch.cat([y, y + 1])
    assert ranks(both, labels).tolist() == by_definition(both, labels)


def test_a_copy_is_not_the_query_itself():
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    # A copy of the same class is a match at cosine 1; one of another class ties with it.
    assert ranks(x, torch.tensor([0, 0, 1, 1])).tolist() == [2, 2, 3, 3]


def test_settings_of_precision_do_not_matter_and_come_back():
    x, y = near_ties(60), few_classes(60)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = ranks(x, y)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.tolist() == by_definition(x, y)


def test_newer_settings_of_precision_come_back():
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this PyTorch has only the older setting")
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        ranks(random(4), one_class(4))
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.slow
def test_memory_is_linear_in_the_number_of_items():
    pytest.importorskip("resource")
    script = """
import resource, torch
from zoo.evaluate import ranks
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
def measure(n):
    x = torch.randn(n, 8)
    ranks(x, torch.arange(n) // 5)  # small classes
    ranks(x[: n // 2], torch.arange(n // 2) % 2)  # large ones
    ranks(torch.ones(n // 4, 8), torch.arange(n // 4) // 5)  # nothing but ties
    return peak()
small = measure(2_000)
print(measure(20_000) - small)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, "MiB; a matrix of 20,000 x 20,000 bytes alone is 381"


# FAISS ------------------------------------------------------------------------------------------


@pytest.fixture
def faiss():
    """FAISS on one thread: for this little data, more would only wait for each other."""
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield faiss
    faiss.omp_set_num_threads(before)


@pytest.mark.usefixtures("faiss")
@pytest.mark.parametrize("labelled", LABELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)
def test_faiss_agrees_with_torch(data, labelled):
    x, y = data(90), labelled(90)[torch.randperm(90)]
    gallery = {"gallery": x[40:], "gallery_labels": y[40:]}
    for more in ({}, gallery):
        for ks in ((1, 10), (1000,)):
            exact, listed = (
                recall_at_k(x, y, ks, backend=backend, **more) for backend in ("torch", "faiss")
            )
            assert exact == listed
            assert exact.unmatched == listed.unmatched
            same = ranks(x, y, limit=max(ks), **more)
            assert torch.equal(listed.ranks, same)


@pytest.mark.usefixtures("faiss")
def test_faiss_settles_an_ordinary_embedding_alone(monkeypatch):
    x, y = random(300), few_classes(300)
    expected = recall_at_k(x, y, KS)
    monkeypatch.setattr(recall._Retrieval, "count", None)
    assert recall_at_k(x, y, KS, backend="faiss") == expected


@pytest.mark.usefixtures("faiss")
def test_faiss_lists_shorter_than_needed(monkeypatch):
    x, y = random(300), few_classes(300)
    whole = evaluation_faiss._index
    monkeypatch.setattr(evaluation_faiss, "_index", lambda gallery: (whole(gallery)[0], 3))
    monkeypatch.setattr(evaluation_faiss, "_BLOCK_BYTES", 1000)
    assert recall_at_k(x, y, (1, 50), backend="faiss") == recall_at_k(x, y, (1, 50))


def test_faiss_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"pip install 'metric-zoo\[faiss-cpu\]'"):
        recall_at_k(random(4), one_class(4), KS, backend="faiss")


# The result, and errors -------------------------------------------------------------------------


def test_result():
    x = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1], [1, -1]])
    result = recall_at_k(x, torch.tensor([0, 0, 1, 1, 2]), np.array([5, 1]))
    assert list(result) == [5, 1]
    assert result == {5: 0.8, 1: 0.8}
    assert (result.queries, result.unmatched) == (5, 1)
    assert result.ranks.tolist() == [1, 1, 1, 1, NO_MATCH]
    for same in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert isinstance(same, Recall)
        assert same == result
        assert torch.equal(same.ranks, result.ranks)


def test_limit():
    x, y = random(60), small_classes(60)
    exact = ranks(x, y)
    assert exact.max() > 6
    assert torch.equal(ranks(x, y, limit=5), exact.clamp(max=6))
    unmatched = ranks(x, singletons(60), limit=5)
    assert (unmatched == NO_MATCH).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bad_embeddings_are_named(value, dtype):
    x, y = random(100, 33).to(dtype), few_classes(100)
    x[7, 32] = x[40, 0] = value
    with pytest.raises(UserError, match=r"embeddings .* in 2 of 100 items, by index: 7, 40$"):
        ranks(x, y)
    with pytest.raises(UserError, match=r"gallery .* in 2 of 100 items, by index: 7, 40$"):
        ranks(x[:5], y[:5], gallery=x, gallery_labels=y)
    x[10:20, 5] = torch.nan
    with pytest.raises(
        UserError, match=r"in 12 of 100 items, by index: 7, 10, 11, 12, 13, \.\.\.$"
    ):
        ranks(x, y)


X, Y = torch.ones(4, 2), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ks": ()}, "ks is empty"),
        ({"ks": 1}, "positive integers"),
        ({"ks": (1, 0)}, "got 0"),
        ({"ks": (1.0,)}, "got 1.0"),
        ({"ks": (True,)}, "got True"),
        ({"ks": "10"}, "got '1'"),
        ({"ks": (NO_MATCH,)}, "below"),
        ({"embeddings": X[0]}, r"shape \(items, dimensions\); got float32 of shape \(2,\)"),
        ({"embeddings": X.long()}, "must be floats"),
        ({"embeddings": X.tolist()}, "got a list"),
        ({"embeddings": X.to_sparse()}, "dense"),
        ({"embeddings": X.to("meta")}, r"dense .*; got a Tensor without data \(device meta\)"),
        ({"labels": Y.to("meta")}, "labels must be a dense .*; got a Tensor without data"),
        ({"embeddings": np.ma.masked_array(X.numpy())}, "dense .*; got a MaskedArray"),
        ({"labels": np.ma.masked_array(Y.numpy())}, "labels must be a dense .*; got a MaskedArray"),
        ({"embeddings": np.array([["a"]])}, "NumPy type"),
        ({"embeddings": X[:0], "labels": Y[:0]}, "empty"),
        ({"embeddings": X[:, :0]}, "empty"),
        ({"embeddings": X[:3]}, "3 embeddings do not match 4 labels"),
        ({"labels": Y.float()}, "labels must be integers"),
        ({"labels": Y > 0}, "labels must be integers"),
        ({"labels": Y[:, None]}, r"shape \(items,\); got int64 of shape \(4, 1\)"),
        ({"gallery": X}, "give both or neither"),
        ({"gallery_labels": Y}, "give both or neither"),
        ({"gallery": X[:, :1], "gallery_labels": Y}, "1 dimensions, but embeddings have 2"),
        ({"gallery": X, "gallery_labels": Y.double()}, "gallery_labels must be integers"),
        ({"gallery": X[:0], "gallery_labels": Y[:0]}, "gallery is empty"),
        ({"gallery": X[:3], "gallery_labels": Y}, "3 items of gallery do not match 4 gallery_labe"),
        ({"gallery": X / 0, "gallery_labels": Y}, "gallery is NaN or infinite in 4 of 4 items"),
        ({"backend": "fais"}, "did you mean faiss"),
        ({"block": 0}, "block must be a positive integer"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(UserError, match=message):
        recall_at_k(**{"embeddings": X, "labels": Y, "ks": (1,), **arguments})


@pytest.mark.filterwarnings("ignore:The PyTorch API of")
def test_errors_of_tensors_that_are_not_plain():
    with pytest.raises(UserError, match="dense .*; got a nested Tensor"):
        recall_at_k(torch.nested.nested_tensor([*X]), Y, (1,))
    with pytest.raises(UserError, match="dense .*; got a MaskedTensor"):
        recall_at_k(masked_tensor(X, X > 0), Y, (1,))


@pytest.mark.parametrize("limit", [0, -1, 2.0, None])
def test_errors_of_limit(limit):
    with pytest.raises(UserError, match="limit"):
        ranks(X, Y, backend="faiss", limit=limit)


LARGE = 2**63 + 5


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (np.array([LARGE, 1], np.uint64), np.array([LARGE - 2**64, 1], np.int64)),
        (np.array([2**64 - 1, 1], np.uint64), np.array([-1, 1], np.int64)),
        (np.array([2**53 + 1, 1], np.uint64), np.array([2**53, 1], np.int64)),
        (np.array([2**64 - 1, 1], np.uint64), np.array([-1, 1], np.int8)),
    ],
)
@pytest.mark.parametrize("other_way", [False, True])
def test_labels_of_two_kinds_of_integers_are_compared_exactly(mine, theirs, other_way):
    if other_way:
        mine, theirs = theirs, mine
    items = np.eye(2, dtype=np.float32)
    found = ranks(items, mine, gallery=items, gallery_labels=theirs)
    assert found.tolist() == [NO_MATCH, 1]
    at = at_r(items, mine, gallery=items, gallery_labels=theirs)
    assert at.precision.tolist() == [0, 1]


def test_equal_labels_of_two_kinds_are_equal():
    items = np.eye(3, dtype=np.float32)
    kinds = [np.uint8, np.int16, np.uint32, np.int64, np.uint64]
    for one in kinds:
        for other in kinds:
            found = ranks(
                items,
                np.array([0, 7, 9], one),
                gallery=items,
                gallery_labels=np.array([0, 7, 9], other),
            )
            assert found.tolist() == [1, 1, 1]
    large = np.array([2**64 - 1, 2**63, 3], np.uint64)
    assert ranks(items, large, gallery=items, gallery_labels=large).tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["bool", "complex64", "complex128", "int8", "uint64"])
def test_what_is_no_float_is_no_embedding(kind):
    with pytest.raises(UserError, match="embeddings must be floats"):
        ranks(X.numpy().astype(kind), Y)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_is_an_embedding(kind):
    assert torch.equal(ranks(X.to(kind), Y), ranks(X.to(kind).double(), Y))
