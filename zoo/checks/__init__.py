"""Checks for any component: of the zoo, of PML, or your own.

A check is a function that raises :class:`CheckFailedError` if a loss lacks a property; the message
has the numbers that were seen and the smallest batch that shows them::

    zoo.checks.run("ice")                      # all of them, as a report
    zoo.checks.run("pml.NTXentLoss", {"temperature": 0.015625})
    zoo.checks.check_permutation(zoo.checks.Subject(MyLoss))

    @zoo.checks.parametrize_with_checks(["ice", MyLoss])
    def test_loss(loss, check):                # ids such as ice-check_permutation
        check(loss)

Optional attributes of the loss decide which checks apply: ``kind``, ``gallery``, ``mined`` and
``normalises``, as in the losses of the zoo; ``random`` if it draws random numbers;
``expected_failures`` for checks that it cannot pass by its definition, ``{check: reason}`` (to pass
one of them is a fault); and a method ``reference_gradient(embeddings, labels)`` if its gradient is
by definition not the derivative of its value; and a method ``part(embeddings, labels, rows)`` if
processes can share its anchors. A class whose constructor requires arguments declares
some for the checks in ``check_arguments``.

Miners, samplers, backbones, data sets, spaces and trackers have their own checks, run by the same
functions::

    zoo.checks.run("m_per_class", {"classes": 4, "per_class": 2}, kind="samplers")
    zoo.checks.run(MyDataset, kind="datasets")

They may have ``random``, ``expected_failures`` and ``check_arguments`` too.

- ``losses``: checks of losses
- ``miners``, ``samplers``, ``backbones``, ``datasets``, ``spaces``, ``trackers``: checks of these
- ``running``: all checks of a kind, and running them
- ``subject``, ``part``: a loss under check; any other component
- ``batches``, ``compare``, ``memory``: batches to check on; comparisons; peak memory
- ``outcomes``: which checks apply, their outcomes, one pytest id for each
"""

from __future__ import annotations

from zoo.checks.losses.numbers import (
    check_antipodal,
    check_autocast,
    check_collapsed,
    check_duplicates,
    check_float32,
    check_gradcheck,
    check_half_precision,
    check_huge_norms,
    check_large_gaps,
    check_nan_embeddings,
    check_no_negatives,
    check_no_positives,
    check_one_image,
    check_perfect,
    check_unequal_classes,
    check_zero_rows,
)
from zoo.checks.losses.rows import check_rows
from zoo.checks.losses.symmetry import (
    check_label_values,
    check_permutation,
    check_relabelling,
    check_rotation,
    check_scale_invariance,
)
from zoo.checks.losses.use import (
    check_determinism,
    check_gallery,
    check_learning,
    check_leaves_inputs,
    check_memory,
    check_mined,
    check_moves,
    check_repeated_steps,
    check_state_dict,
)
from zoo.checks.outcomes import Check, Outcome, Record, Report
from zoo.checks.part import Part
from zoo.checks.running import (
    CHECKS,
    CHECKS_OF,
    checks_for,
    parametrize_with_checks,
    records,
    run,
    subject_of,
    summaries,
)
from zoo.checks.subject import CheckFailedError, NotApplicableError, Subject

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "Check",
    "CheckFailedError",
    "NotApplicableError",
    "Outcome",
    "Part",
    "Record",
    "Report",
    "Subject",
    "check_antipodal",
    "check_autocast",
    "check_collapsed",
    "check_determinism",
    "check_duplicates",
    "check_float32",
    "check_gallery",
    "check_gradcheck",
    "check_half_precision",
    "check_huge_norms",
    "check_label_values",
    "check_large_gaps",
    "check_learning",
    "check_leaves_inputs",
    "check_memory",
    "check_mined",
    "check_moves",
    "check_nan_embeddings",
    "check_no_negatives",
    "check_no_positives",
    "check_one_image",
    "check_perfect",
    "check_permutation",
    "check_relabelling",
    "check_repeated_steps",
    "check_rotation",
    "check_rows",
    "check_scale_invariance",
    "check_state_dict",
    "check_unequal_classes",
    "check_zero_rows",
    "checks_for",
    "parametrize_with_checks",
    "records",
    "run",
    "subject_of",
    "summaries",
]
