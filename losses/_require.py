"""The allowed numbers of arguments: others are refused with a message."""

from __future__ import annotations

from zoo.errors import UserError


def require_positive(**arguments: float) -> None:
    """Refuse arguments that are not above 0 and finite.

    Raises:
        UserError: names the argument and its value.
    """
    for name, value in arguments.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{name} must be positive, not {value}")


def require_not_negative(**arguments: float) -> None:
    """Refuse arguments that are not at least 0 and finite.

    Raises:
        UserError: names the argument and its value.
    """
    for name, value in arguments.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{name} must be at least 0, not {value}")
