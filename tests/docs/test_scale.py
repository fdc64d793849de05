"""What docs/scale.md says beside its tables, which are made from the same constants."""

from __future__ import annotations

import json
import sys

import pytest
from places import DOCS, ROOT

from zoo.search import compressing
from zoo.search.neighbours import lists_for

sys.path.append(str(ROOT / "tools"))
import _scale

PAGE = " ".join((DOCS / "scale.md").read_text("utf-8").split())


def report(name):
    return json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text("utf-8"))


def test_the_numbers_in_the_text_are_those_of_the_results():
    assert f"`multi_similarity` holds {_scale.matrices():.1f} of them" in PAGE
    large = report("ice_large")["large"]
    took = f"`ice` took {large['peak_mb_above_input'] / 1e3:.1f} GB for {large['items']:,} images"
    assert took in PAGE
    adam = 16 * report("scale")["networks"][_scale.NETWORK]["parameters"]
    assert f"4 x 4 bytes per parameter: {adam / 1e9:.1f} GB" in PAGE
    loading = report("pipeline")
    assert f"JPEGs are of {loading['bytes_of_a_jpeg'] / 1e3:.0f} kB" in PAGE
    cores = [
        _scale.images_a_second() / loading["loading"]["images_per_core_second"][way]
        for way in ("zoo, no cache", "zoo, cache")
    ]
    assert f"need {cores[0]:.0f} such cores that decode, or {cores[1]:.0f} that read" in PAGE
    constants = report("scale")["evaluation_bytes"]
    assert f"{constants['number'] + 4:.0f}·d·N/n + {constants['label']:.0f}·N bytes" in PAGE
    sample = 2 * 64 * lists_for(10**7) * 512 * 4
    assert f"That is {sample / 1e9:.1f} GB for 10 million images" in PAGE
    assert f"of {report('scale')['name_bytes']['characters']} characters" in PAGE


def test_the_speeds_in_the_text_are_those_of_the_formulas():
    assert f"{_scale.BF16 / 1e12:.0f} TFLOP/s in bfloat16, {_scale.FP32 / 1e12} in float32" in PAGE
    within, between = _scale.NVLINK / 1e9, _scale.INFINIBAND / 1e9
    assert f"{within:.0f} GB/s to a GPU of the same machine in each direction" in PAGE
    assert f"{between:.0f} GB/s to another machine, {_scale.PER_MACHINE} GPUs" in PAGE


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_the_formulas_give_the_size_of_an_index_that_was_written(kind):
    found = report("index")
    on_disk = found["kinds"][kind]["on_disk_per_image"]["index"]
    assert _scale.in_memory(kind, found["items"], found["dim"]) == pytest.approx(on_disk, rel=0.01)


def test_the_formulas_give_the_size_of_the_lists_and_vectors_that_were_written():
    found = report("index")
    files = found["kinds"]["ivfpq, refine 200"]["on_disk_per_image"]
    assert files["lists"] == _scale.compressed(found["dim"])
    assert files["vectors"] == 2 * found["dim"]
    assert compressing.bytes_on_disk(1, found["dim"]) == 2 * files["lists"]
    small = _scale.in_memory("ivfpq", found["items"], found["dim"])
    assert small == pytest.approx(
        files["index"], abs=8 * lists_for(found["items"]) * 2 / found["items"]
    )


def test_what_is_said_of_rotation_and_refining_holds():
    """Rotation finds more at equal bytes; refining finds more."""
    kinds = report("index")["kinds"]
    recall = {name: found["recall_at_10"] for name, found in kinds.items()}
    for refine in (0, 50, 200):
        assert recall[f"ivfpq, refine {refine}"] > recall[f"ivfpq, not rotated, refine {refine}"]
    assert recall["ivfpq, refine 0"] < recall["ivfpq, refine 50"] < recall["ivfpq, refine 200"]
