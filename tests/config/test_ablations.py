"""Every ablation config, through to its table: two steps of each of its runs, on small images."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import replicas
from rich.console import Console

from zoo import leaderboard, runner
from zoo.config import shipped
from zoo.plans import planning, running
from zoo.progress import Reporter

ABLATIONS = [name for name in shipped() if name.startswith("ablation/")]
SMALL = ["train.iterations=2", "model.backbone={name: convnet, width: 4}", "device=cpu"]
QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of as many classes as the largest batch has."""
    root = tmp_path_factory.mktemp("photographs")
    return replicas.photographs(root, {"train": 90, "test": 4}, each=3, size=(16, 18))


def stand_in(name: str, photographs: Path) -> list[str]:
    """Return what to set for data that is not at hand, or takes long to search."""
    folder = f"dataset={{name: image_folder, root: {photographs}}}"
    return [folder, "images={resize: 18, crop: 16}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_ends_in_its_table(name, photographs, tmp_path):
    settings = [*SMALL, *stand_in(name, photographs), f"output={tmp_path}"]
    plan = planning.make([name], settings)
    for job in plan.jobs:
        runner.run(job.config, reporter=QUIET)
    outcome = running.run(plan, reporter=QUIET)
    assert [result["run"] for result in outcome.results] == [job.name for job in plan.jobs]
    (board,) = leaderboard.boards(outcome.results)
    assert len(board.rows) == len(plan.jobs) >= 4
    console = Console(width=200, file=io.StringIO())
    console.print(leaderboard.to_table(board))
    text = console.file.getvalue()
    for job in plan.jobs:
        paper = job.config.paper.recall if job.config.paper else {}
        assert all(f"{number:.1f} (" in text for number in paper.values())


def test_there_are_those_of_the_paper_and_small_ones():
    kinds = ("scale", "batch_content", "batch_size", "embedding_size")
    wanted = {f"ablation/{kind}_{data}" for kind in kinds for data in ("sop", "glyphs")}
    assert set(ABLATIONS) == wanted | {
        "ablation/gradient_glyphs"
    }  # of which the paper says nothing
