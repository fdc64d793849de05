"""Arguments that must be one of a few words."""

from __future__ import annotations

from typing import Any, get_args

from zoo.errors import UserError, did_you_mean


def check_choice(argument: str, value: str, choices: Any) -> None:
    """Refuse a value that is not one of a Literal's.

    Raises:
        UserError: it names them, and the nearest.
    """
    known = get_args(choices)
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise UserError(f"{argument} {value!r} is not one of {', '.join(known)}{hint}")
