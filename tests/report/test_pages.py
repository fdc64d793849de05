"""``zoo report``: the pages of a site, from folders of every kind."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading

import numpy as np
import pytest
import report_runs
from killed import killed_at_every_step
from PIL import Image
from places import DOCS

import zoo
from zoo import UserError
from zoo.progress import Reporter
from zoo.report import extra, output, render, site

pytest.importorskip("plotly")

QUIET = Reporter(quiet=True)
PLOTLY = "plotly.min.js"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report of two seeds, trained, on classes with hostile names."""
    root = tmp_path_factory.mktemp("hostile")
    for seed in (0, 1):
        report_runs.trained(root / "runs", seed)
    summary = site.build(root / "runs", root / "site", queries=8, items=40, reporter=QUIET)
    assert summary.missing == {}
    assert summary.runs == 2
    return root


def page(root, name="index.html"):
    return (root / "site" / name).read_text("utf-8")


def run_page(root, ending="s0"):
    (path,) = (root / "site" / "runs").glob(f"*{ending}.html")
    return path.read_text("utf-8")


def data(text, name):
    """Return the JSON that stands in a page."""
    (found,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    return json.loads(found)


@pytest.mark.slow
def test_hostile_names_are_text(hostile):
    for text in (page(hostile), run_page(hostile)):
        assert "ice_<wbr>&lt;b&gt;&amp;" in text or "ice_&lt;b&gt;&amp;" in text
        scripts = re.findall(r"<script[^>]*>", text)
        file, inline = (
            r'src="(\.\./)?assets/\w[\w.]*js"( defer)?',
            r'type="[a-z/]+json" id="[\w-]+"',
        )
        ours = f"<script ({file}|{inline})>"
        assert scripts
        assert all(re.fullmatch(ours, script) for script in scripts)
        assert len(re.findall("</script>", text)) == len(scripts)
        assert "<img src=x" not in text
        assert report_runs.NAME not in text
    text = run_page(hostile)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; test" in text
    assert "a_b &amp; 50% test" in text
    names = data(text, "tsne-data")["names"]
    assert set(names) == {f"{name} test" for name in report_runs.HOSTILE}


def test_every_page_forbids_the_network_and_refers_to_files_that_are_there(hostile):
    for path in (hostile / "site").rglob("*.html"):
        text = path.read_text("utf-8")
        assert "default-src 'none'" in text
        assert "http:" not in text
        assert "https:" not in text
        assert_links_work(path)


def assert_links_work(path):
    for target in re.findall(r'(?:src|href)="([^"#]+)"', path.read_text("utf-8")):
        assert target == "data:," or (path.parent / target).is_file(), target


def test_the_gallery_shows_what_the_ranks_say(hostile):
    text = run_page(hostile)
    queries = re.findall(r'<li class="query">(.*?)\n</ol>\n</li>', text, re.S)
    assert len(queries) == 8
    ranks = [re.search(r"(right at once|at rank ([\d,]+))", q)[2] or "1" for q in queries]
    assert ranks == sorted(ranks, key=int, reverse=True)
    for query, rank in zip(queries, ranks, strict=True):
        found = re.findall(r'<li class="(right|wrong)">', query)
        assert len(found) == 10
        first = found.index("right") + 1 if "right" in found else 11
        assert min(int(rank), 11) == first
        later = re.findall(
            r'<li class="right" data-rank="([\d,]+)">\n<img .*, right, rank \1"', query
        )
        assert later == [rank] * (int(rank) > 10)


def test_thumbnails_are_shared_by_the_runs_and_fit(hostile):
    (folder,) = (hostile / "site" / "thumbs").iterdir()
    images = list(folder.iterdir())
    assert 8 < len(images) <= 60
    assert {Image.open(path).size for path in images} == {(24, 20)}


def test_the_map_is_of_the_items_that_the_page_tells(hostile):
    found = data(run_page(hostile), "tsne-data")
    assert len(found["x"]) == len(found["y"]) == len(found["rank"]) == len(found["index"]) == 40
    assert "40 of 60 test images, about the same share of each class" in run_page(hostile)


def test_seeds_are_grouped_and_pages_lead_to_each_other(hostile):
    assert re.findall(r'seed \d">(\d)</a>', page(hostile)) == ["0", "1"]
    text = run_page(hostile)
    assert 'href="../index.html"' in text
    assert re.search(
        r'Seeds:\s*<span aria-current="page">0</span>\s*<a href="[^"]*s1.html">1</a>', text
    )
    loss = data(text, "loss-data")
    assert [trace["name"] for trace in loss["data"]] == ["this run", "seed 1"]
    assert loss["data"][0]["x"] == [1, 2, 3]
    assert [trace["x"] for trace in data(text, "recall-data")["data"]] == [[2]] * 4


def test_a_page_has_config_throughput_and_environment(hostile):
    text = run_page(hostile)
    for said in ("dataset: {name: hostile}", "images/s", "Precision", "pytorch-metric-learning"):
        assert said in text


def test_building_again_makes_no_map_and_no_thumbnail_anew(hostile, monkeypatch):
    from zoo.report import tsne

    thumbs = {p: p.stat().st_mtime_ns for p in (hostile / "site" / "thumbs").rglob("*.png")}
    before = run_page(hostile)
    monkeypatch.setattr(tsne, "project", lambda embeddings: pytest.fail("computed again"))
    site.build(hostile / "runs", hostile / "site", queries=8, items=40, reporter=QUIET)
    assert {p: p.stat().st_mtime_ns for p in thumbs} == thumbs
    assert run_page(hostile) == before


def build(tmp_path, **options):
    options = {"queries": 0, "items": 0, "reporter": QUIET} | options
    return site.build(tmp_path / "runs", tmp_path / "site", **options)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("before", ["nothing", "a report"])
def test_a_kill_leaves_pages_that_are_whole(tmp_path, monkeypatch, before):
    """Old pages or new ones: the row of a run that is gone, or that of one that came."""
    monkeypatch.setattr(render, "assets", lambda: dict.fromkeys((*render.STATIC, PLOTLY), b"x"))
    gone = report_runs.made_up(tmp_path / "runs", "rll_glyphs")
    if before == "a report":
        build(tmp_path)
    gone.rename(tmp_path / "gone")
    report_runs.made_up(tmp_path / "runs")
    seen = []
    for _ in killed_at_every_step(tmp_path / "site", lambda: build(tmp_path)):
        first = tmp_path / "site" / "index.html"
        seen.append("rll" in page(tmp_path) if first.exists() else None)
        for path in (tmp_path / "site").rglob("*.html"):
            assert path.read_text("utf-8").endswith("</html>")
        if first.exists():
            assert_links_work(first)
    assert seen == sorted(seen, key=lambda old: old is False)
    assert {*seen} == {None if before == "nothing" else True, False}
    names = {path.name for path in (tmp_path / "site").rglob("*") if path.is_file()}
    pages = {path.name for path in (tmp_path / "site" / "runs").iterdir()}
    assert names == {"index.html", *pages, *render.STATIC, PLOTLY, output.MANIFEST, output.LOCK}
    assert len(pages) == 1


def test_two_reports_into_one_folder_wait_for_each_other(tmp_path):
    report_runs.made_up(tmp_path / "runs")
    build(tmp_path)
    said, waits = [], threading.Event()

    class Listener(Reporter):
        def say(self, text):
            said.append(text)
            waits.set()

    done = []
    second = threading.Thread(
        target=lambda: done.append(build(tmp_path, reporter=Listener(quiet=True)))
    )
    with output.opened(tmp_path / "site", QUIET):
        second.start()
        assert waits.wait(60)
        assert not done
    second.join(60)
    assert done
    assert said == [
        f"{tmp_path / 'site' / 'report.json'}: waiting for another process that is writing it"
    ]


def test_no_lock_goes_into_the_folder_of_somebody_else(tmp_path):
    report_runs.made_up(tmp_path / "runs")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine").touch()
    with pytest.raises(UserError, match="has other files than a report"):
        build(tmp_path)
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["mine"]


def test_runs_that_lost_something_have_their_page_and_the_reason(tmp_path):
    runs = tmp_path / "runs"
    report_runs.made_up(runs)
    for name, why in (("begun-0-s0", None), ("damaged-0-s0", "{")):
        (runs / name).mkdir()
        (runs / name / "config.yaml").write_text("loss: {name: <b>}\n")
        if why:
            (runs / name / "result.json").write_text(why)
    bare = report_runs.made_up(runs, "ice_glyphs", "loss.scale=7")
    for name in ("config.yaml", "metrics.jsonl", "ranks.npy"):
        (bare / name).unlink()
    summary = build(tmp_path, queries=4, items=20)
    assert summary.runs == 4
    text = run_page(tmp_path, "begun-0-s0")
    assert "The run is not finished" in text
    assert "loss: {name: &lt;b&gt;}" in text
    assert "not the result of a run" in run_page(tmp_path, "damaged-0-s0")
    lost = run_page(tmp_path, bare.name)
    assert "There is no curve of the loss" in lost
    assert "There is no config.yaml" in lost
    assert "There is no gallery and no map of the test images" in lost
    assert "ranks.npy: missing" in lost
    reasons = " ".join(summary.missing)
    assert "ranks.npy: missing" in reasons
    assert "has no checkpoint.pt" in reasons
    index = page(tmp_path)
    assert "Not in a table" in index
    assert "begun-0-s0" in index


def test_images_that_are_gone_are_no_failure(tmp_path, monkeypatch):
    report_runs.trained(tmp_path / "runs")

    def gone(self, split):
        raise UserError("the images are gone <b>")

    monkeypatch.setattr(report_runs.Hostile, "__init__", gone)
    summary = build(tmp_path, queries=4)
    assert "the images are gone" in next(iter(summary.missing))
    assert "the images are gone &lt;b&gt;" in run_page(tmp_path)


def test_a_data_set_that_breaks_is_no_failure(tmp_path, monkeypatch):
    report_runs.trained(tmp_path / "runs")
    monkeypatch.setattr(report_runs.Hostile, "__getitem__", lambda self, index: 1 / 0)
    assert "division by zero" in next(iter(build(tmp_path, queries=4).missing))


def test_what_has_collapsed_has_a_gallery_but_no_map(tmp_path):
    folder = report_runs.trained(tmp_path / "runs")
    embeddings = zoo.load(folder).embed_test().embeddings
    with np.load(folder / "embeddings.npz") as kept:
        key = kept["key"]
    np.savez(folder / "embeddings.npz", embeddings=np.ones_like(embeddings), key=key)
    build(tmp_path, queries=4, items=40)
    assert "There is no map: all embeddings are the same" in run_page(tmp_path)
    assert '<li class="query">' in run_page(tmp_path)


def test_names_of_pages_are_safe_and_of_their_own(tmp_path):
    names = ["a#?%<b>-0-s0", "a#?%<i>-0-s0", "x" * 200 + "-s0", "..a", "é", "sub/a-0-s0", "a-0-s0"]
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text("name: x\n")
    build(tmp_path)
    pages = [path.name for path in (tmp_path / "site" / "runs").iterdir()]
    assert len(pages) == len(names)
    assert all(re.fullmatch(r"[\w.-]+\.html", name, re.A) and len(name) < 140 for name in pages)


def test_the_same_run_twice_has_two_pages(tmp_path):
    report_runs.made_up(tmp_path / "runs" / "a")
    report_runs.made_up(tmp_path / "runs" / "b")
    build(tmp_path)
    assert "The same experiment and seed as a run in the table" in page(tmp_path)
    assert len(list((tmp_path / "site" / "runs").iterdir())) == 2


def test_strange_values_in_a_result_are_shown_as_text(tmp_path):
    strange = {"hardware": {"<i>": [1]}, "versions": "<u>", "git": 3, "images_per_second": "fast"}
    report_runs.made_up(tmp_path / "runs", **strange, finished=["<s>"], precision={"a": "<q>"})
    build(tmp_path)
    text = run_page(tmp_path)
    assert not re.search("<(i|u|s|q)>", text)
    assert "&lt;i&gt;" in text


def test_sweeps_are_on_the_first_page(tmp_path):
    for scale in (1, 16):
        report_runs.made_up(tmp_path / "runs", "ice_glyphs", f"loss.scale={scale}")
    build(tmp_path)
    text = page(tmp_path)
    assert data(text, "sweep-1")["data"][0]["x"] == [1, 16]
    assert "Recall@1 by scale: glyphs" in text


def test_the_command(tmp_path, command):
    report_runs.made_up(tmp_path / "runs")
    report_runs.made_up(tmp_path / "runs", "rll_glyphs")
    status, out, err = command(
        "report", tmp_path / "runs", "-o", tmp_path / "site", "--runs", "rll_*", "--no-tsne"
    )
    assert (status, out.strip()) == (0, str(tmp_path / "site" / "index.html"))
    assert "no gallery and no map of rll_glyphs" in err
    assert "ice_glyphs" not in page(tmp_path)
    status, out, err = command("report", tmp_path / "runs", "-o", tmp_path / "site", "-q")
    assert (status, err) == (0, "")
    assert "ice_" in page(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no such folder"),
        (["empty"], "no run in it"),
        (["runs", "--runs", "ice_glyph"], "no run is called ice_glyph; did you mean"),
        (["runs", "-o", "runs"], "has other files than a report"),
        (["runs", "--gallery", "-1"], "-1"),
    ],
)
def test_what_is_wrong_is_told(arguments, said, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    report_runs.made_up(tmp_path / "runs")
    status, _, err = command("report", *arguments)
    assert status == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_packages_that_are_missing_are_told_in_a_line(tmp_path, command, monkeypatch):
    report_runs.made_up(tmp_path / "runs")
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    status, _, err = command("report", tmp_path / "runs", "-o", tmp_path / "site")
    assert status == 2
    assert "needs plotly: pip install 'metric-zoo[report]'" in err
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_the_commands_of_the_page_of_documentation_work(tmp_path, command, monkeypatch):
    from zoo.report import figures

    text = (DOCS / "report.md").read_text("utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M))
    lines = [shlex.split(line, comments=True)[1:] for line in blocks.splitlines()]
    assert len(lines) == 7
    monkeypatch.chdir(tmp_path)
    drawn = []
    monkeypatch.setattr(figures, "draw_map", lambda *arguments: drawn.append(arguments))
    for scale in (64, 16):
        report_runs.made_up(tmp_path / "runs", "rll_glyphs", f"model.embedding_size={scale}")
    report_runs.made_up(tmp_path / "runs", "ice_glyphs")
    report_runs.made_up(tmp_path / "runs", "ice_glyphs", "loss.scale=16", "name=scale")
    for line in lines:
        names = ["rll_glyphs", next((tmp_path / "runs").glob("rll_*")).as_posix()]
        line = [names[1] if part == names[0] else part for part in line]
        status, _, err = command(*line)
        assert status == 0, err
    assert drawn[0][2] == 1000
