"""Checks that any component can be put through: of the zoo, of PML, or your own.

A check is a function that raises :class:`CheckFailedError` if a loss lacks a property; the message
holds the numbers that were seen and the smallest batch that shows them::

    zoo.checks.run("ice")                      # all of them, as a report
    zoo.checks.run("pml.NTXentLoss", {"temperature": 0.015625})
    zoo.checks.check_permutation(zoo.checks.Subject(MyLoss))

    @zoo.checks.parametrize_with_checks(["ice", MyLoss])
    def test_loss(loss, check):                # ids such as ice-check_permutation
        check(loss)

Which of them apply is read off attributes of the loss, all of them optional: ``kind``, ``gallery``,
``mined`` and ``normalises`` as the losses of the zoo have them; ``random`` for one that draws
numbers; ``expected_failures`` for what it cannot pass by its definition, ``{check: reason}`` (it is
a fault if it passes then); and a method ``reference_gradient(embeddings, labels)`` for one whose
gradient is by definition not the derivative of its value, which returns what it is. A class whose
constructor cannot do without arguments has some to be checked with in ``check_arguments``.

Miners, samplers, backbones and data sets have checks of their own, by the same functions::

    zoo.checks.run("m_per_class", {"classes": 4, "per_class": 2}, kind="samplers")
    zoo.checks.run(MyDataset, kind="datasets")

They may have ``random``, ``expected_failures`` and ``check_arguments`` too.

- ``suite``: the checks of each kind, and running them
- ``subject``, ``part``: a loss under check; any other component
- ``numbers``, ``symmetry``, ``use``: checks of losses
- ``miners``, ``samplers``, ``backbones``, ``datasets``: checks of these
- ``batches``, ``compare``, ``memory``: batches to check on; comparisons; peak memory
- ``outcomes``: which checks apply, what came out, one pytest id for each
"""

from __future__ import annotations

from zoo.checks.numbers import (
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
from zoo.checks.outcomes import Check, Outcome, Record, Report
from zoo.checks.part import Part
from zoo.checks.subject import CheckFailedError, NotApplicableError, Subject
from zoo.checks.suite import (
    CHECKS,
    CHECKS_OF,
    checks_for,
    parametrize_with_checks,
    records,
    run,
    subject_of,
    summaries,
)
from zoo.checks.symmetry import (
    check_label_values,
    check_permutation,
    check_relabelling,
    check_rotation,
    check_scale_invariance,
)
from zoo.checks.use import (
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
