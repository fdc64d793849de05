"""Shared by losses that have weights for each class."""

from __future__ import annotations

from torch import Tensor

from zoo.errors import UserError


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Refuse labels without weights, on a CPU only, as reading them would make a GPU wait.

    Raises:
        UserError: names the labels that occur and those that are allowed.
    """
    if labels.device.type != "cpu" or not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(
            f"labels are from {low} to {high}, but this loss has weights for {num_classes} "
            f"classes, 0 to {num_classes - 1}: renumber the classes, or build it with more"
        )
