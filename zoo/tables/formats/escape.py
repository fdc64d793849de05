"""Any text as ASCII that LaTeX shows as the same text."""

from __future__ import annotations

import re
import unicodedata

# After the end of a table line, LaTeX takes brackets and stars for options.
_SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"{{{c}}}" for c in "[]*"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    '"': "''",
}
_SIGNS = {  # by code point, since some look alike
    **{
        "\xb1": r"$\pm$",
        "\xd7": r"$\times$",
        "\xf7": r"$\div$",
        "\u2212": "$-$",
        "\xb0": r"$^\circ$",
    },
    **{"\u2264": r"$\le$", "\u2265": r"$\ge$", "\u2260": r"$\ne$", "\u2248": r"$\approx$"},
    **{"\u2192": r"$\to$", "\u221e": r"$\infty$", "\xb7": r"$\cdot$", "\xb5": r"$\mu$"},
    **{"\u2013": "--", "\u2014": "---", "\u2018": "`", "\u2019": "'", "\u201c": "``"},
    **{"\u201d": "''", "\u2026": r"\ldots{}", "\xa0": "~", "\xa7": r"\S{}", "\xb6": r"\P{}"},
    **{"\xa9": r"\copyright{}", "\xa3": r"\pounds{}", "\xa1": "!`", "\xbf": "?`", "\xdf": r"\ss{}"},
    **{"\xe6": r"\ae{}", "\xc6": r"\AE{}", "\u0153": r"\oe{}", "\u0152": r"\OE{}"},
    **{"\xf8": r"\o{}", "\xd8": r"\O{}", "\u0142": r"\l{}", "\u0141": r"\L{}", "\u0131": r"\i{}"},
}
_LIGATURES = re.compile(r"([-,'])(?=\1)")  # LaTeX makes other characters of pairs
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True))
_ACCENTS = {
    **{"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u"},
    **{"\u0307": ".", "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c"},
    **{"\u0323": "d", "\u0328": "k"},
}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau"
_GREEK += " upsilon phi chi psi omega"
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"


def escape(text: str) -> str:
    """Return a text as LaTeX.

    Letters with accents and what is common in mathematics are as they are; of another script, where
    fonts and packages would have to be there, the number of each character is shown.
    """
    parts = _LIGATURES.split(text)  # odd parts are the separators, the first of a pair
    return "".join(
        f"{part}{{}}" if odd % 2 else "".join(map(_character, part))
        for odd, part in enumerate(parts)
    )


def _character(character: str) -> str:
    for table in (_SPECIAL, _SIGNS):
        if character in table:
            return table[character]
    if character in _RAISED:
        return rf"\textsuperscript{{{_RAISED[character]}}}"
    if character == "\n":
        return " "
    if " " <= character <= "\x7e":
        return character
    return _greek(character) or _accented(character) or f"{{[}}U+{ord(character):04X}{{]}}"


def _greek(character: str) -> str:
    """Return a Greek letter; empty for others, and for those that look like Latin letters."""
    name = unicodedata.name(character, "").split(" LETTER ")
    word = name[-1].lower().replace("lamda", "lambda")
    if name[0] == "GREEK SMALL" and word in _GREEK.split():
        return rf"$\{word}$"
    capital = name[0] == "GREEK CAPITAL" and word.capitalize() in _CAPITALS.split()
    return rf"$\{word.capitalize()}$" if capital else ""


def _accented(character: str) -> str:
    """Return a Latin letter with an accent; empty for others."""
    base, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) != 1 or marks[0] not in _ACCENTS or not (base.isascii() and base.isalpha()):
        return ""
    letter = rf"\{base}" if base in "ij" and marks[0] not in "\u0327\u0323\u0328" else base
    return rf"\{_ACCENTS[marks[0]]}{{{letter}}}"
