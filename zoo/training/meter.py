"""The mean loss since the last reading, and the first number that was not finite."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from zoo.data.pipeline import Batch


class Meter:
    """The mean loss since the last reading, and the first number that was not finite.

    It adds up on the device: reading a number makes a GPU wait, so the caller decides when.
    """

    def __init__(self, device: torch.device, levels: int = 1, remembered: int = 1000) -> None:
        self.total = torch.zeros(levels, device=device)
        self.norm = torch.zeros((), device=device)
        self.count = 0
        self.bad = torch.full((2,), -1, dtype=torch.int64, device=device)
        self.recent: deque[tuple[int, list[int]]] = deque(maxlen=remembered)

    def update(self, batch: Batch, loss: Tensor, norm: Tensor, check_norm: bool) -> None:
        """Add the loss of each level and the gradient norm of a batch."""
        self.total += loss
        self.norm = norm
        self.count += 1
        self.recent.append((batch.iteration, batch.indices))
        loss_fine = loss.isfinite().all()
        fine = torch.stack([loss_fine, norm.isfinite() if check_norm else loss_fine])
        self.bad = torch.where((self.bad < 0) & ~fine, batch.iteration, self.bad)

    def read(self) -> tuple[list[float], float]:
        """Return each level's mean loss since the last reading, and the latest gradient norm."""
        means = (self.total / max(1, self.count)).tolist()
        self.total.zero_()
        self.count = 0
        return means, float(self.norm)

    def first_bad(self) -> tuple[int, str, list[int]] | None:
        """Return (iteration, loss or gradient, indices of the images) of the first bad number."""
        loss, gradient = self.bad.tolist()
        if loss < 0 and gradient < 0:
            return None
        what = "gradient" if loss < 0 or 0 <= gradient < loss else "loss"
        iteration = gradient if what == "gradient" else loss
        return iteration, what, dict(self.recent).get(iteration, [])

    def state_dict(self) -> dict[str, Any]:
        """Return the sum from which the next mean is computed."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved sum."""
        self.total.copy_(state["total"])
        self.count = int(state["count"])
