"""What stands in for zoo.plans.process: the beginning and the end of programs that only pretend to
run, for tests of plans whose runs compete on held-out classes.

Between the two, a program sets ``share``, ``recall``, ``iteration`` and ``folder``.
"""

BEGINNING = r"""
import json, sys
from pathlib import Path

def tell(**event):
    print(json.dumps(event), flush=True)

text = "".join(iter(sys.stdin.readline, "...\n"))
name, test = sys.argv[1], "--no-test" not in sys.argv
scale = text.split("loss: ")[1].split("scale: ")[1].split(",")[0].split("}")[0]
seed = int(name.rpartition("-s")[2])
"""

END = r"""
record = {
    "run": name, "config": "x", "digest": name.split("-")[1], "seed": seed,
    "dataset": {"name": "d"}, "loss": "ice", "backbone": "b", "embedding_size": 2,
    "seconds": {"training": 1.0}, "iterate": "best", "iteration": iteration,
    "validation": {"share": share, "recall": {"1": recall}},
}
if test:
    before = json.loads((folder / "validation.json").read_text())
    record |= {"recall": {"1": 0.25, "2": 0.5}, "selection": before["selection"]}
(folder / ("result.json" if test else "validation.json")).write_text(json.dumps(record))
tell(finished=(record if test else record["validation"])["recall"]["1"])
"""
