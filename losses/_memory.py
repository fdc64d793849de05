"""The memory of pytorch-metric-learning, for any loss that compares with a gallery."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import losses as pml
from torch import nn

from zoo.errors import UserError


class CrossBatchMemory(pml.CrossBatchMemory):  # type: ignore[misc]
    """Compare a batch also with the embeddings of earlier batches, up to ``memory_size``.

    The class of pytorch-metric-learning, with two additions that a run needs: it accepts losses
    that are not in PML's list, and its state dict says how far the memory is filled; otherwise a
    resumed run would continue with another memory.

    Args:
        loss: a loss in the list of pytorch-metric-learning, or any other that declares that it
            takes a gallery and mined pairs, ``gallery = True`` and ``mined = True``.
        embedding_size: d.
        memory_size: embeddings that are kept, at least as many as a batch has.
        miner: picks pairs of the batch and the memory.

    Raises:
        UserError: the loss does not work with a memory.

    Reference:
        Wang, Zhang, Huang, Scott. Cross-Batch Memory for Embedding Learning. CVPR 2020.
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: nn.Module | None = None,
    ) -> None:
        _check(loss, self.supported_losses())
        super().__init__(loss, embedding_size, memory_size=memory_size, miner=miner)

    def check_batch(self, batch_size: int, embedding_size: int) -> None:
        """Refuse a memory that is smaller than a batch."""
        if batch_size > self.memory_size:
            raise UserError(
                f"a memory of {self.memory_size} is smaller than a batch of {batch_size} images; "
                "make memory_size larger"
            )

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Do nothing: the name of a class does not show it, and the constructor has checked."""

    def get_extra_state(self) -> dict[str, Any]:
        """Return the position for the next batch, and whether the memory is full."""
        return {"queue_idx": self.queue_idx, "has_been_filled": self.has_been_filled}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue filling the memory at a saved position."""
        self.queue_idx = int(state["queue_idx"])
        self.has_been_filled = bool(state["has_been_filled"])


def _check(loss: nn.Module, supported: list[str]) -> None:
    name = type(loss).__name__
    if type(loss).__module__.startswith("pytorch_metric_learning."):
        fits = name in supported
        reason = f"those that pytorch-metric-learning accepts are {', '.join(supported)}"
    else:
        fits = all(getattr(loss, trait, None) is True for trait in ("gallery", "mined"))
        reason = "it does not declare a gallery and mined pairs (gallery = True, mined = True)"
    if not fits:
        raise UserError(f"a memory of batches does not work with {name}: {reason}")
