"""The options of ``zoo leaderboard``."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
from boards import result, results_of, write_runs

LOSSES = ("ice", "rll", "cce")
IN_ORDER = ("ice_glyphs", "rll_glyphs", "cce_glyphs")


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    """Return a function that runs ``zoo leaderboard`` over some runs: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    runs = [
        result(f"{loss}_{data}", {1: 0.5 + n / 10, 2: 0.9 - n / 10}, digest=loss, dataset=data)
        | {"loss": loss, "seconds": {"training": 60.0 * (n + 1)}, "embedding_size": size}
        for data, size in (("glyphs", 64), ("sop", 128))
        for n, loss in enumerate(LOSSES)
    ]
    runs.append(result("plain", {1: 0.2}) | {"loss": None, "backbone": "other.net"})
    write_runs(tmp_path / "runs", *runs)
    return lambda *arguments: command("leaderboard", *arguments)


def names(out):
    """Return what the rows are called, of all tables."""
    rows = [line.split()[0] for line in out.splitlines() if line.strip()]
    return [name.rstrip("¹²³") for name in rows if "_" in name or name.startswith("plain")]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], ["cce_glyphs", "rll_glyphs", "ice_glyphs", "plain", "cce_sop", "rll_sop", "ice_sop"]),
        (["--dataset", "sop"], ["cce_sop", "rll_sop", "ice_sop"]),
        (["--loss", "i*", "--loss", "none"], ["ice_glyphs", "plain", "ice_sop"]),
        (["--loss", "i*", "--dataset", "s*"], ["ice_sop"]),
        (["--backbone", "other.*"], ["plain"]),
        (["--size", "128"], ["cce_sop", "rll_sop", "ice_sop"]),
        (["--name", "*_sop", "--sort", "name"], ["cce_sop", "ice_sop", "rll_sop"]),
        (["--name", "*_sop", "--sort", "minutes"], ["ice_sop", "rll_sop", "cce_sop"]),
        (["--dataset", "glyphs", "--sort", "R@2"], [*IN_ORDER, "plain"]),
        (["--dataset", "glyphs", "--sort", "backbone"], [*reversed(IN_ORDER), "plain"]),
    ],
    ids=str,
)
def test_filters_and_order(run, arguments, wanted):
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert names(out) == wanted


def test_groups(run):
    out = run("--group-by", "backbone", "--group-by", "size", "--dataset", "glyphs")[1]
    titles = [line for line in out.splitlines() if line.startswith("Recall@K")]
    assert titles == [
        "Recall@K in percent, glyphs; convnet, 64-d",
        "Recall@K in percent, glyphs; other.net, 64-d",
    ]
    assert "not comparable" not in out
    assert "not comparable" in run("--group-by", "dataset", "--dataset", "glyphs")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--loss", "ic"], "--loss ic: no run has that; did you mean ice?"),
        (["--loss", "lifted"], "--loss lifted: no run has that; there are cce, ice, none, rll"),
        (["--loss", "x*", "--loss", "y"], "there are cce, ice, none, rll"),
        (["--sort", "R@3"], "--sort R@3: there is no such column; there are R@1, R@2, name, "),
        (["--sort", "speed"], "--sort speed: there is no such column; "),
        (["--sort", "name", "--shape", "table3"], "--sort: --shape table3 has the paper's rows"),
        (["--group-by", "size", "--shape", "table3"], "--group-by: --shape table3 has"),
        (["--paper"], "--paper, --others: are for a --shape of the paper"),
        (["--standalone"], "--standalone: is for --format latex, not text"),
        (["--settings", "--format", "csv"], "--settings: is for tables in the terminal"),
        (["--settings", "-o", "table.txt"], "--settings: is for tables in the terminal"),
        (["-o", "table.doc"], "table.doc: say which --format, or let it end in one of .txt, .md"),
        (["-o", "no/such/table.csv"], "no/such/table.csv: there is no folder"),
        (["--shape", "table1"], "there is no shape 'table1'; did you mean table"),
        (["--shape", "table3", "--dataset", "glyphs", "--loss", "none", "--size", "9"], "--size 9"),
        (["elsewhere"], "elsewhere: there is no such folder"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_format_that_there_is_not(run):
    status, _, err = run("--format", "pdf")
    assert status == 2
    assert "'pdf' is not one of" in err


@pytest.mark.parametrize(
    ("ending", "begins"),
    [
        ("txt", "Recall@K in percent"),
        ("md", "### Recall@K"),
        ("csv", "table,row,dataset,"),
        ("json", '{\n  "version": 1,'),
        ("tex", "% In the preamble: "),
        ("html", "<!doctype html>"),
    ],
)
def test_the_file_says_the_format(run, tmp_path, ending, begins):
    status, out, err = run("-o", f"table.{ending}")
    assert (status, out) == (0, "")
    assert err.startswith(f"table.{ending}: ")
    text = (tmp_path / f"table.{ending}").read_text("utf-8")
    assert text.startswith(begins)
    assert list(tmp_path.glob(".*")) == []
    kind = {"txt": "text", "md": "markdown", "tex": "latex"}.get(ending, ending)
    assert run("--format", kind)[1] == text
    run("-o", "other", "-f", kind)
    assert (tmp_path / "other").read_text("utf-8") == text


def test_a_document_of_its_own(run):
    text = run("-f", "latex", "--standalone")[1]
    assert text.startswith("\\documentclass{article}\n")
    assert text.endswith("\\end{document}\n")
    assert text.count("\\begin{table}") == 2
    assert text.count("\\clearpage") == 1


def test_several_folders(run, tmp_path):
    write_runs(
        tmp_path / "more", result("new", {1: 0.99}, seed=0), result("new", {1: 0.97}, seed=1)
    )
    out = run("runs", "more", "-f", "csv", "--dataset", "glyphs", "--spread", "ci")[1]
    rows = list(csv.DictReader(out.splitlines()))
    assert rows[0]["config"] == "new"
    assert float(rows[0]["mean"]) == pytest.approx(98)
    assert len({row["config"] for row in rows}) == 5


def test_the_shape_of_table_3(run, tmp_path):
    write_runs(tmp_path / "paper", *results_of("ice_sop"), *results_of("rll_cub"))
    status, out, err = run("paper", "--shape", "table3", "--paper")
    assert (status, err) == (0, "")
    assert "77.3 (+0.0)" in out
    document = json.loads(run("paper", "--shape", "table3", "-f", "json")[1])
    assert document["tables"][0]["shape"] == "Table 3"
    assert len(document["tables"][0]["rows"]) == 12


def test_others_and_warnings(run):
    status, _, err = run("--shape", "table3", "--name", "*_sop")
    assert (status, err) == (0, "")
    status, _, err = run("--shape", "table3", "--name", "*_sop", "--dataset", "sop", "--others")
    assert (status, err) == (0, "")
    status, _, err = run("--shape", "table3")
    assert status == 0
    assert err == (
        "warning: Table 3 has no columns for 4 runs (glyphs); --dataset glyphs makes some\n"
    )


def test_what_does_not_fit_beside_stands_below(run, tmp_path, monkeypatch):
    runs = [
        found | {"seed": seed}
        for name in ("ice_sop", "rll_cub", "ice_cars")
        for seed, found in enumerate(results_of(name) * 2)
    ]
    runs = [r | {"run": f"{r['config']}-s{r['seed']}"} for r in runs]
    write_runs(tmp_path / "seeds", *runs)
    monkeypatch.setenv("COLUMNS", "70")
    status, out, _ = run("seeds", "--shape", "table3")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 70
    titles = [line for line in out.splitlines() if "Comparison of losses" in line]
    assert len(titles) in (1, 3)


@pytest.mark.slow
def test_it_needs_no_torch(run):
    code = (
        "import sys; from zoo.cli import main as cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'matplotlib', 'sklearn'} & set(sys.modules), file=sys.stderr)"
    )
    arguments = ["leaderboard", "--shape", "table3", "--spread", "ci", "-f", "html"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith("set()\n")
    assert done.stdout.startswith("<!doctype html>")


def test_the_help_has_examples(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "zoo leaderboard --shape table3 --paper" in " ".join(out.split())
