"""Measures, embedding and search on a GPU, with torch and FAISS, against the CPU.

Where a test is the same on the CPU, it also runs there, as a rehearsal.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from on_devices import CPU, GPU, META, needs_gpu, needs_two, on_each

import zoo
from zoo.data.pipeline import evaluation_batches
from zoo.errors import UserError
from zoo.evaluation import faiss as evaluation_faiss
from zoo.evaluation.at_r import at_r
from zoo.evaluation.recall import ranks, recall_at_k
from zoo.progress import Reporter
from zoo.search.neighbours import Neighbours
from zoo.trained import files

pytestmark = pytest.mark.slow
QUIET = Reporter(quiet=True)
COUNT = {"cpu": 1000, "cuda": 20_000}


def items(count, dim=64):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // 7
    centres = torch.randn(int(labels[-1]) + 1, dim, generator=generator)
    return centres[labels] + 1.2 * torch.randn(count, dim, generator=generator), labels


# ---- measures


@on_each
def test_the_ranks_are_equal(device):
    embeddings, labels = items(COUNT[device.type])
    found = ranks(embeddings.to(device), labels.to(device))
    assert found.device == CPU
    assert torch.equal(found, ranks(embeddings, labels))
    assert torch.equal(found, ranks(embeddings.to(device), labels, block=333))


@on_each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_ranks_are_equal_in_other_types(device, dtype):
    embeddings, labels = items(1500)
    embeddings = embeddings.to(dtype)
    assert torch.equal(ranks(embeddings.to(device), labels), ranks(embeddings, labels))


@on_each
def test_the_ranks_in_a_gallery_are_equal(device):
    embeddings, labels = items(1500)
    gallery = {"gallery": embeddings[::2].to(device), "gallery_labels": labels[::2]}
    found = ranks(embeddings[1::2].to(device), labels[1::2], **gallery)
    gallery["gallery"] = embeddings[::2]
    assert torch.equal(found, ranks(embeddings[1::2], labels[1::2], **gallery))


@on_each
def test_ties_and_equal_items_count_there_too(device):
    embeddings, labels = items(700)
    embeddings[::3] = embeddings[0]
    embeddings[1] = 0
    assert torch.equal(ranks(embeddings.to(device), labels), ranks(embeddings, labels))


@on_each
def test_what_is_not_finite_is_one_message(device):
    embeddings, labels = items(70)
    embeddings[3, 1] = torch.nan
    with pytest.raises(UserError, match="embeddings are NaN or infinite in 1 of 70 items"):
        recall_at_k(embeddings.to(device), labels, [1])


@on_each
def test_scores_at_r_are_equal(device):
    embeddings, labels = items(COUNT[device.type])
    found, expected = at_r(embeddings.to(device), labels), at_r(embeddings, labels)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.device == CPU
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_devices_without_float64_are_left(monkeypatch):
    """Such as mps: numbers are copied to the CPU. The meta device has none, and is refused."""
    with pytest.raises(UserError, match="without data"):
        recall_at_k(torch.ones(4, 2, device=META), torch.arange(4), [1])


# ---- FAISS


def needs_faiss(device):
    faiss = pytest.importorskip("faiss")
    if device.type == "cuda" and not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS has no GPU")
    return faiss


@on_each
@pytest.mark.parametrize("limit", [1, 100, evaluation_faiss.GPU_MAX_K + 100])
def test_the_ranks_of_faiss_are_equal_up_to_its_limit(device, limit):
    """Also where a GPU's lists are shorter than the limit, and torch decides the rest."""
    needs_faiss(device)
    embeddings, labels = items(COUNT[device.type] // 4)
    found = ranks(embeddings.to(device), labels, backend="faiss", limit=limit)
    assert torch.equal(found, ranks(embeddings, labels, limit=limit))


@on_each
def test_faiss_runs_where_the_vectors_are(device):
    faiss = needs_faiss(device)
    copy = evaluation_faiss.on_gpu(faiss.IndexFlatIP(8), device)
    assert (copy is None) == (device == CPU)
    if copy is not None:
        last = torch.device("cuda", torch.cuda.device_count() - 1)
        assert evaluation_faiss.on_gpu(faiss.IndexFlatIP(8), last).getDevice() == last.index


@on_each
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_neighbours_are_those_of_the_cpu(device, kind):
    needs_faiss(device)
    vectors = torch.nn.functional.normalize(items(3000)[0]).numpy()
    here, there = (Neighbours.of(vectors, kind, where, QUIET) for where in (CPU, device))
    if kind == "ivf":  # its centres differ
        assert there.tune(vectors)[-1].recall >= 0.9
        return
    for mine, theirs in zip(
        there.search(vectors[:50], 10), here.search(vectors[:50], 10), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


# ---- a trained network


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Let a GPU round as little as a CPU, so that nearly equal neighbours keep their places."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def photos(run):
    return run.parents[1] / "photos" / "test"


@on_each
def test_images_are_embedded_as_on_the_cpu(device, run, photos, tmp_path, command):
    output = tmp_path / "e.npz"
    status, _, said = command("embed", run, photos, "-o", output, "--device", device)
    assert status == 0, said
    expected = zoo.load(run, "cpu").embed_folder(photos, reporter=QUIET)
    with np.load(output) as found:
        assert found["names"].tolist() == expected.names
        np.testing.assert_allclose(found["embeddings"], expected.embeddings, atol=1e-3)


@on_each
def test_an_index_finds_what_the_cpu_finds(device, run, photos, tmp_path, command):
    needs_faiss(device)
    found = []
    for where in (CPU, device):
        index = tmp_path / str(where)
        status, _, said = command("index", run, photos, "-o", index, "--device", where)
        assert status == 0, said
        query = sorted(photos.rglob("*.png"))[0]
        status, out, said = command("search", index, query, "-k", 3, "--device", where, "--json")
        assert status == 0, said
        (hits,) = (query["hits"] for query in json.loads(out)["queries"])
        found.append([hit["path"] for hit in hits])
    assert found[0] == found[1]


@needs_gpu
def test_measures_are_those_of_the_cpu(run, tmp_path, command, monkeypatch):
    measured = []
    for available in (True, False):
        copy = shutil.copytree(run.parents[1], tmp_path / str(available)) / "runs" / run.name
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)  # noqa: B023
        status, _, said = command("measure", copy)
        assert status == 0, said
        measured.append(json.loads((copy / "result.json").read_text())["measures"])
    assert measured[0] == pytest.approx(measured[1], abs=0.05)


@on_each
def test_workers_read_for_a_gpu(device):
    assert (files._workers(device) == 0) == (device == CPU)


@on_each
def test_images_of_the_test_come_in_pinned_memory(device, run):
    model = zoo.load(run, device)
    dataset = model.test_split()
    images = next(evaluation_batches(dataset, model.config.images, batch_size=4, device=device))
    assert images.is_pinned() == (device == GPU)


@needs_two
def test_processes_embed_on_a_gpu_each(run, photos):
    alone = zoo.load(run, "cpu").embed_folder(photos, reporter=QUIET)
    found = zoo.load(run, "cuda").embed_folder(photos, processes=2, reporter=QUIET)
    assert found.names == alone.names
    np.testing.assert_allclose(found.embeddings, alone.embeddings, atol=1e-3)
