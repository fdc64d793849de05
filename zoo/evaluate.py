"""Recall@K: the public entrance to :mod:`zoo.evaluation.recall`."""

from __future__ import annotations

from zoo.evaluation.recall import BACKENDS, NO_MATCH, Recall, ranks, recall_at_k

__all__ = ["BACKENDS", "NO_MATCH", "Recall", "ranks", "recall_at_k"]
