"""Write the tables of the README and of the pages in docs/ from the files in results/.

    python tools/make_tables.py [--check]

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. With --check nothing is
written, and the exit status says whether one of them is stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import _scale
from _pages import ROOT, keep

from zoo import leaderboard

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "results"


def runs(*names: str, only: str = "", without: str = "-", settings: bool = False) -> str:
    """Return the leaderboard of the runs in results/runs/<name>, and their hardware.

    Args:
        names: the names of the folders, whose runs share one leaderboard.
        only: the beginning of the names of the runs.
        without: the beginning of the names of runs that are left out.
        settings: whether the table has a column for the settings that differ.
    """
    found = [result for name in names for result in leaderboard.load(RESULTS / "runs" / name)]
    results = [r for r in found if r["run"].startswith(only) and not r["run"].startswith(without)]
    if not settings:  # the oldest results have none, only their configs do
        results = [{**r, "settings": {}} for r in results]
    heading, table = leaderboard.render(leaderboard.tables(results), "markdown").split("\n\n", 1)
    network = heading.partition("; ")[2]  # the conditions of all rows
    conditions = {
        f"{r['hardware']['device']}, {r['precision']}, torch {r['versions']['torch']}"
        for r in results
    }
    return f"{table}\n{'; '.join([network, *sorted(conditions)])}.\n"


def without_minutes(table: str) -> str:
    """Return a table without its last column, minutes, which mean nothing on a busy machine."""
    return re.sub(r"\|[^|\n]*\|$", "|", table, flags=re.M)


def levels(name: str) -> str:
    """Return Recall@1 in percent of each level alone and of all levels together."""
    lines = []
    for run in leaderboard.load(RESULTS / "runs" / name):
        alone = {level: scores["1"] for level, scores in run["recall_of_levels"].items()}
        if not lines:
            heads = ["loss", *alone, "together"]
            lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
        found = [*alone.values(), run["recall"]["1"]]
        lines.append(f"| {run['loss']} | " + " | ".join(f"{100 * r:.2f}" for r in found) + " |")
    return "\n".join(lines) + "\n"


def ice(name: str) -> str:
    """Return the table of benchmarks/ice.py."""
    report = _report(name)
    lines = [
        "| batch | ICE, ms | of two matrix products | NTXentLoss takes |",
        "|---|---:|---:|---:|",
    ]
    for batch in report["batches"]:
        lines.append(
            f"| {batch['batch']} | {1e3 * batch['median_seconds']['ice']:.2f} "
            f"| {batch['ice_to_products']:.1f} times | {batch['ntxent_to_ice']:.0f} times as long |"
        )
    return "\n".join(lines) + _where(report)


def recall(name: str) -> str:
    """Return the table of benchmarks/recall.py."""
    report = _report(name)
    lines = ["| data | Recall@K, s | of the bare product | FAISS takes |", "|---|---:|---:|---:|"]
    for data, found in report["data"].items():
        lines.append(
            f"| {data} | {found['median_seconds']['zoo']:.2f} "
            f"| {found['to_bare_product']['zoo']:.2f} times "
            f"| {found['faiss_to_zoo']:.1f} times as long |"
        )
    return "\n".join(lines) + _where(report)


def losses(name: str) -> str:
    """Return the table of benchmarks/losses.py."""
    report = _report(name)
    lines = [
        "| loss | images | ms | MB | nearest of PML | ms | MB |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for row in report["rows"]:
        mine, theirs = map(_step, (row["ours"], row["pml"]))
        cells = (row["loss"].replace("_", "\\_"), row["images"], mine, row["peer"], theirs)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + _where(report)


def _step(found: dict[str, Any]) -> str:
    if "failed" in found:
        return "more memory than 14 GB | –"
    return f"{1e3 * found['median_seconds']:.1f} | {found['peak_mb']:.0f}"


def pipeline(name: str) -> str:
    """Return the table of benchmarks/pipeline.py."""
    report = _report(name)
    speeds = report["loading"]["images_per_core_second"]
    ways = {
        "decoded": "Pillow, torchvision's transforms",
        "zoo, no cache": "the zoo, decoding",
        "zoo, cache": "the zoo, `images.cache`",
    }
    lines = ["| loading, on one core | images/s | |", "|---|---:|---:|"]
    for way, title in ways.items():
        ratio = speeds[way] / speeds["decoded"]
        lines.append(f"| {title} | {speeds[way]:,.0f} | {ratio:.1f} times |")
    training = report["training"]
    loop = training["throughput_to_one_batch"]
    alone = report["batch"] / training["seconds_of_a_step"]["one batch"]
    lines += [
        f"| **MobileNetV2 at 112 px, {training['device']}** | | |",
        f"| one batch in memory | {alone:.1f} | |",
        f"| the loop, checkpoints included | {loop * alone:.1f} | {100 * loop:.1f} % |",
    ]
    return "\n".join(lines) + _where(report)


def false_positives(name: str) -> str:
    """Return the table of benchmarks/false_positives.py."""
    rows = _report(name)["rows"]
    tests = list(rows[0]["rates"])
    heads = ["test split", "by class", *tests]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(tests)]
    for row in rows:
        rates = [f"{100 * row['rates'][test]:.1f} %" for test in tests]
        lines.append("| " + " | ".join([row["data"], row["by_class"], *rates]) + " |")
    return "\n".join(lines) + "\n"


def measures(name: str) -> str:
    """Return the table of benchmarks/measures.py."""
    report = _report(name)
    lines = ["| data | images | s | of Recall@K | PML takes |", "|---|---:|---:|---:|---:|"]
    for data, found in report["data"].items():
        lines.append(
            f"| {data} | {found['items']:,} | {found['median_seconds']['zoo']:.2f} "
            f"| {found['to_recall']:.1f} times | {found['pml_to_zoo']:.1f} times as long |"
        )
    return "\n".join(lines) + _where(report)


MAKERS: dict[str, Callable[[], str]] = {
    "first": lambda: runs("glyphs", only="ice_glyphs-45788d16-s0"),
    "glyphs": lambda: runs("glyphs"),
    "gradient": lambda: without_minutes(runs("gradient", settings=True)),
    # The runs of rll for the table above are of the time before it had query_weights.
    "methods": lambda: without_minutes(runs("methods", "glyphs", without="rll_glyphs-3995e4c6")),
    "tutorial": lambda: without_minutes(runs("glyphs", "tutorial")),
    "birds": lambda: runs("birds"),
    "birds_lmh": lambda: levels("birds_lmh"),
    "ice": lambda: ice("ice"),
    "recall": lambda: recall("recall"),
    "losses": lambda: losses("losses"),
    "pipeline": lambda: pipeline("pipeline"),
    "false_positives": lambda: false_positives("false_positives"),
    "measures": lambda: measures("measures"),
    "scale_step": _scale.step,
    "scale_epoch": _scale.epoch,
    "scale_evaluation": _scale.evaluation,
    "scale_limits": _scale.limits,
    "index": _scale.index_measured,
    "index_sizes": _scale.index_sizes,
}


def filled(text: str) -> str:
    """Return a document with each of its tables generated again."""

    def make(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{MAKERS[match[1]]()}<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", make, text, flags=re.S)


def _report(name: str) -> dict[str, Any]:
    path = RESULTS / "benchmarks" / f"{name}.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _where(report: dict[str, Any]) -> str:
    return f"\n\n{report['device']}, {report['simd']}, torch {report['versions']['torch']}.\n"


def main() -> None:
    """Write the pages, or check that they are up to date."""
    for page in PAGES:
        keep(page, filled(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
