"""The known names that a wrong one could mean: typing errors, parts of names, swapped words.

``triplet`` stands for ``triplet_semihard`` as well as for ``soft_triple``, and ``pml.TripletLoss``
for ``pml.TripletMarginLoss``: names are compared whole, and word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_ENOUGH = 0.7  # least similarity; that of "scale" and "sampler" is 0.67
_AS_GOOD = 0.1  # names this close to the best are suggested with it
_MOST = 3  # names that are suggested
_LONGEST = 100  # letters that are compared
_ABBREVIATION = 3  # letters that suffice as an abbreviation of a longer word
_SHORTENED = 0.95  # similarity of the beginning of a word and the word
_SWAPPED = 0.9  # similarity of words with the same letters in another order
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def near(wrong: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names: the one most similar to a wrong name, and close rivals."""
    wrong = wrong[:_LONGEST]
    grades = {name: _grade(wrong, name) for name in dict.fromkeys(known)}
    best = sorted(grades, key=lambda name: grades[name], reverse=True)[:_MOST]
    if not best:
        return []
    least = max(_ENOUGH, grades[best[0]][0] - _AS_GOOD)
    return [name for name in best if grades[name][0] >= least]


def _grade(wrong: str, name: str) -> tuple[float, float]:
    """Return how well a name contains the words of the wrong one, and how similar both are."""
    whole = _alike(wrong.lower(), name.lower())
    theirs = _words(name)
    found = [max((_alike(word, other) for other in theirs), default=0.0) for word in _words(wrong)]
    return max(whole, min(found, default=0.0)), whole


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _alike(wrong: str, word: str) -> float:
    """Return the similarity of two words, from 0 to 1."""
    if wrong == word:
        return 1.0
    if len(wrong) >= _ABBREVIATION and word.startswith(wrong):
        return _SHORTENED
    if sorted(wrong) == sorted(word):
        return _SWAPPED
    return SequenceMatcher(None, wrong, word, autojunk=False).ratio()
