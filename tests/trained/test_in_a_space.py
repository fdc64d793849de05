"""A network with a space: used, measured, searched, exported and shown by its distance."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from small_run import small_run

import zoo
from zoo import index as indices
from zoo.errors import UserError
from zoo.evaluation.recall import ranks
from zoo.network.embedder import Embedder
from zoo.progress import Reporter
from zoo.registry import components
from zoo.runs.folder import RunFolder
from zoo.trained import export as exports

pytest.importorskip("faiss")
QUIET = Reporter(quiet=True)
SPACES = {"hyperbolic": "{name: hyperbolic, curvature: 0.3}", "euclidean": "euclidean"}


@pytest.fixture(scope="module", params=SPACES)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return small_run(folder, f"model.space={SPACES[request.param]}", "loss=hyp_vit")


@pytest.fixture(scope="module")
def model(run):
    return zoo.load(run, device="cpu")


@pytest.fixture(scope="module")
def photos(run):
    return run.parent.parent / "photographs"


@pytest.fixture(scope="module")
def everything(model, photos):
    """All test photographs, and their points."""
    paths = sorted(path for path in (photos / "test").rglob("*") if path.is_file())
    return paths, torch.from_numpy(model(paths)).double()


def test_the_result_is_counted_in_the_space(run, model):
    embeddings, labels = model.embed_test(QUIET)
    found = RunFolder(run).ranks()
    assert np.array_equal(found, ranks(embeddings, labels, space=model.space).numpy())
    assert not np.array_equal(found, ranks(embeddings, labels).numpy())


def test_embeddings_are_points(model, everything):
    raw, _ = model.embed_test(QUIET)
    points = model.space.points(torch.from_numpy(raw).double())
    torch.testing.assert_close(
        everything[1].sort(0).values, points.sort(0).values, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_search_finds_the_nearest(kind, run, model, photos, everything, tmp_path):
    indices.build(model, photos / "test", tmp_path / "index", kind=kind, reporter=QUIET)
    opened = indices.open(tmp_path / "index", device="cpu")
    paths, points = everything
    distance = model.space.distances(points, points)
    for path, own, hits in zip(paths, distance, opened.search(paths, k=5), strict=True):
        assert hits[0].path == path.resolve()
        assert hits[0].itself
        assert hits[0].cosine is None
        nearest = own.sort().values[:5]
        found = torch.tensor([hit.distance for hit in hits], dtype=torch.float64)
        torch.testing.assert_close(found, nearest, rtol=1e-3, atol=2e-3)
        of_names = torch.stack([own[paths.index(hit.path)] for hit in hits])
        torch.testing.assert_close(of_names, nearest, rtol=1e-3, atol=1e-4)


def test_the_command_shows_distances(run, photos, everything, tmp_path, command):
    assert command("index", run, photos / "test", "-o", tmp_path / "index", "-q")[0] == 0
    query = everything[0][0]
    status, out, _ = command("search", tmp_path / "index", query, "-k", 2)
    assert status == 0
    assert "distance" in out
    assert "cosine" not in out
    _, out, _ = command("search", tmp_path / "index", query, "-k", 2, "--json")
    first = json.loads(out)["queries"][0]["hits"][0]
    assert first["distance"] == pytest.approx(0, abs=2e-3)
    assert "cosine" not in first


def test_compressed_files_are_for_cosines(run, photos, tmp_path, command):
    status, _, err = command("index", run, photos / "test", "-o", tmp_path / "i", "--kind", "ivfpq")
    assert status == 2
    assert "this network has a model.space; give --kind hnsw or ivf" in err


def test_an_export_gives_points(model, everything, tmp_path):
    exported = exports.export(model, tmp_path / "model.pt2", reporter=QUIET)
    output = exported.description["output"]
    assert output["space"]["name"] == model.config.model.space.name
    assert "length" not in output
    assert "of length 1" not in exports.snippet(exported)


def test_another_curvature_is_another_network(model):
    before = model.network_digest()
    spec = model.config.model.space.model_copy(update={"name": "other"})
    network = model.config.model.model_copy(update={"space": spec})
    model_like = zoo.trained.network.Trained(
        model.folder, model.config.model_copy(update={"model": network}), model.embedder
    )
    assert model_like.network_digest() != before


def test_a_report_is_made(run, tmp_path, command):
    pytest.importorskip("plotly")
    status, _, err = command("report", run, "-o", tmp_path / "site", "-q")
    assert status == 0, err
    page = next((tmp_path / "site").rglob("*hyp*.html"), None) or next(
        (tmp_path / "site").rglob("*.html")
    )
    assert ", cosine" not in page.read_text()


def test_levels_are_compared_by_cosines():
    with pytest.raises(zoo.UserError, match="cut an embedding that is compared by cosines"):
        zoo.config.load(
            "ice_glyphs", ["model={backbone: convnet, slices: [64, 64], space: euclidean}"]
        )


class Torus:
    """Angles, compared by the distance of their sines and cosines: twice as many numbers."""

    def __init__(self):
        self._flat = zoo.build("spaces", "euclidean")

    def points(self, embeddings):
        return torch.cat([embeddings.cos(), embeddings.sin()], 1)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._flat, name)


def test_points_may_have_another_size(tmp_path, monkeypatch, command):
    monkeypatch.setattr(components, "_registered", dict(components._registered))
    zoo.register("spaces", "torus")(Torus)
    folder = small_run(tmp_path, "model.space=torus")
    model = zoo.load(folder, device="cpu")
    size = model.embedder.embedding_size
    paths = sorted((tmp_path / "photographs" / "test").rglob("*.*"))
    points = model(paths)
    assert points.shape == (len(paths), 2 * size)
    assert model.embedding_size == 2 * size
    assert model([]).shape == (0, 2 * size)
    indices.build(model, tmp_path / "photographs" / "test", tmp_path / "index", reporter=QUIET)
    hits = indices.open(tmp_path / "index", device="cpu").search(paths[:1], k=2)[0]
    assert [hit.itself for hit in hits] == [True, False]
    exported = exports.export(model, tmp_path / "model.pt2", reporter=QUIET)
    assert exported.description["output"]["shape"] == ["batch", 2 * size]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (lambda x: x.sum(), "gave a tensor of shape"),
        (lambda x: x[:1], r"gave points of shape \(1, 8\) for 2 embeddings"),
        (lambda x: x @ x, "points"),
    ],
)
def test_a_space_that_gives_no_points(points, said):
    space = Torus()
    space.points = points
    with pytest.raises(UserError, match=said):
        Embedder(zoo.build("backbones", "convnet", width=2), 8, space=space)


def test_what_is_no_space():
    with pytest.raises(UserError, match="object has no method points; a space has points, dist"):
        Embedder(zoo.build("backbones", "convnet", width=2), 8, space=object())
