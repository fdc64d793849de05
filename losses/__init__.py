"""Losses of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.losses":
    raise ImportError(
        f"import zoo.losses, not {__name__}: two copies of a class would not be equal"
    )

BUILTIN: dict[str, dict[str, str]] = {
    "losses": {
        "ice": "zoo.losses.ice:ICELoss",
    },
}
