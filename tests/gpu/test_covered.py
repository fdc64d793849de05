"""Every place of the code that does something else on a GPU has a test that runs there.

`pytest tests/gpu` on a machine with a GPU runs all of them; without one, those that a CPU or the
meta device can rehearse.
"""

from __future__ import annotations

import ast
import re

from places import ROOT

FOLDERS = ("zoo", "losses", "models", "miners", "datasets")

COVERED = {
    "losses/_classes.py: check_classes": "a_step_waits_for_nothing",
    "losses/_images.py: require_ids": "a_step_waits_for_nothing",
    "losses/_inputs.py: _check_range": "miners_pick_pairs_there",
    "losses/_ranking.py: most_positives": "a_step_waits_for_nothing",
    "losses/_shared.py: only_finite": "a_step_waits_for_nothing",
    "zoo/checks/losses/use.py: check_moves": "losses_are_those_of_the_cpu",
    "zoo/data/pipeline.py: load": "batches_come_in_pinned_memory",
    "zoo/data/pipeline.py: training_batches": "crops_are_those_of_the_cpu",
    "zoo/errors.py: out_of_memory": "full_memory_is_known",
    "zoo/evaluation/at_r.py: at_r": "scores_at_r_are_equal",
    "zoo/evaluation/at_r.py: the module": "scores_at_r_are_equal",
    "zoo/evaluation/faiss.py: on_gpu": "faiss_runs_where_the_vectors_are",
    "zoo/evaluation/items.py: check_items": "the_ranks_are_equal",
    "zoo/evaluation/items.py: the module": "the_ranks_are_equal",
    "zoo/evaluation/recall.py: _workers": "the_ranks_are_equal",
    "zoo/evaluation/recall.py: ranks": "the_ranks_are_equal",
    "zoo/parallel/ranks.py: Ranks.__init__": "two_gpus_are_as_one",
    "zoo/parallel/ranks.py: Ranks.own_randomness": "two_gpus_are_as_one",
    "zoo/parallel/worker.py: joined": "two_gpus_are_as_one",
    "zoo/plans/engines/local.py: _gpus_for": "a_plan_gives_each_run_a_gpu",
    "zoo/plans/engines/slots.py: DeviceSlots.__init__": "a_plan_gives_each_run_a_gpu",
    "zoo/plans/engines/base.py: the module": "a_plan_gives_each_run_a_gpu",
    "zoo/registry/calling.py: loss_of": "miners_pick_pairs_there",
    "zoo/support/environment.py: device_name": "a_gpu_ends_near_a_cpu",
    "zoo/support/precision.py: full_float32": "float32_is_full_there",
    "zoo/support/randomness.py: _gpus": "random_numbers_go_on_where_they_were",
    "zoo/support/randomness.py: random_state": "random_numbers_go_on_where_they_were",
    "zoo/support/randomness.py: set_random_state": "random_numbers_go_on_where_they_were",
    "zoo/trained/files.py: _workers": "workers_read_for_a_gpu",
    "zoo/training/batchnorm.py: synchronise": "batch_normalisation_is_torchs_on_gpus",
    "zoo/training/device.py: _own_device": "each_process_gets_a_gpu",
    "zoo/training/device.py: check_shared": "too_few_gpus_are_one_message",
    "zoo/training/device.py: choose_device": "a_numbered_gpu_has_it_all",
    "zoo/training/device.py: choose_precision": "the_precision_is_that_of_the_hardware",
    "zoo/network/embedder.py: Embedder.project": "every_precision_learns",
    "zoo/network/embedder.py: Embedder.features": "every_precision_learns",
    "zoo/training/experiment.py: _check_memory": "a_gpu_ends_near_a_cpu",
    "zoo/training/experiment.py: _default_workers": "a_gpu_ends_near_a_cpu",
    "zoo/training/loop.py: Training._continue_from": "a_stopped_run_ends_as_if_it_had_not_been",
    "zoo/training/step.py: Trainer.__init__": "every_precision_learns",
    "zoo/training/step.py: Trainer.step": "a_step_waits_for_nothing",
}
"""The places, "file: function", and for each the name of a test in this folder."""


def in_file(node, where=""):
    """Yield the functions, with their classes, in which a node names a kind of device."""
    if names_a_kind(node):
        yield where or "the module"
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from in_file(child, f"{where}.{child.name}".lstrip(".") if named else where)


def names_a_kind(node):
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        return text.endswith(("device.type", ".is_cuda")) or text.startswith("torch.cuda.")
    text = getattr(node, "value", "") if isinstance(node, ast.Constant) else ""
    return re.fullmatch(r"nccl|(cpu:gloo,)?cuda:?(nccl)?", str(text)) is not None


def test_every_place_has_a_test_on_a_gpu():
    places = {
        f"{path.relative_to(ROOT).as_posix()}: {function}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for function in in_file(ast.parse(path.read_text()))
    }
    assert len(places) > 30
    assert places == set(COVERED)


def test_the_tests_exist():
    tests = {
        node.name.removeprefix("test_")
        for path in (ROOT / "tests" / "gpu").glob("test_gpu_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert set(COVERED.values()) <= tests
