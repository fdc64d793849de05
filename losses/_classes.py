"""What losses with weights for each class share."""

from __future__ import annotations

from torch import Tensor

from zoo.errors import UserError


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Refuse labels that have no weights; on a CPU only, as a GPU would have to wait.

    Raises:
        UserError: names the labels that occur and those that may.
    """
    if labels.device.type != "cpu" or not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(
            f"labels are from {low} to {high}, but this loss has weights for {num_classes} "
            f"classes, 0 to {num_classes - 1}: number the classes so, or build it with more"
        )
