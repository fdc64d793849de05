"""Which known names a wrong one could have meant: slips of the keys, parts of names, other words.

``triplet`` stands for ``triplet_semihard`` as well as for ``soft_triple``, and ``pml.TripletLoss``
for ``pml.TripletMarginLoss``: names are compared whole, and word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_ENOUGH = 0.7  # alike; "scale" and "sampler" are at 0.67
_AS_GOOD = 0.1  # what is this near to the best is named beside it
_MOST = 3  # names that are suggested
_LONGEST = 100  # letters that are looked at
_ABBREVIATION = 3  # letters of a word that stand for a longer one
_SHORTENED = 0.95  # how much alike the beginning of a word and the word are
_SWAPPED = 0.9  # and words of the same letters in another order
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def near(wrong: str, known: Iterable[str]) -> list[str]:
    """Return the known names, at most three, that a wrong one is about as near to as can be."""
    wrong = wrong[:_LONGEST]
    grades = {name: _grade(wrong, name) for name in dict.fromkeys(known)}
    best = sorted(grades, key=lambda name: grades[name], reverse=True)[:_MOST]
    if not best:
        return []
    least = max(_ENOUGH, grades[best[0]][0] - _AS_GOOD)
    return [name for name in best if grades[name][0] >= least]


def _grade(wrong: str, name: str) -> tuple[float, float]:
    """Return how well a name has all that is in the wrong one, and how much they are alike."""
    whole = _alike(wrong.lower(), name.lower())
    theirs = _words(name)
    found = [max((_alike(word, other) for other in theirs), default=0.0) for word in _words(wrong)]
    return max(whole, min(found, default=0.0)), whole


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _alike(wrong: str, word: str) -> float:
    """Return how much two words are alike, from 0 to 1."""
    if wrong == word:
        return 1.0
    if len(wrong) >= _ABBREVIATION and word.startswith(wrong):
        return _SHORTENED
    if sorted(wrong) == sorted(word):
        return _SWAPPED
    return SequenceMatcher(None, wrong, word, autojunk=False).ratio()
