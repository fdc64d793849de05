"""The memory of pytorch-metric-learning, around any loss that compares with a gallery."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import losses as pml
from torch import nn

from zoo.errors import UserError


class CrossBatchMemory(pml.CrossBatchMemory):  # type: ignore[misc]
    """Compare a batch with the embeddings of the batches before it as well, up to ``memory_size``.

    The class of pytorch-metric-learning, with two things that a run needs: it takes other losses
    than those of its list, and its state dict says how far the memory is filled, without which a
    run that is resumed would go on with another memory.

    Args:
        loss: of pytorch-metric-learning, one that its list has; or any other that says that it
            takes a gallery and mined pairs, ``gallery = True`` and ``mined = True``.
        embedding_size: d.
        memory_size: embeddings that are kept, at least as many as a batch has.
        miner: picks pairs of the batch and the memory.

    Raises:
        UserError: a loss that cannot be compared with a memory.

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
        """Refuse a memory that a batch does not fit into."""
        if batch_size > self.memory_size:
            raise UserError(
                f"a memory of {self.memory_size} is smaller than a batch of {batch_size} images; "
                "make memory_size larger"
            )

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Say nothing: the name of a class does not tell, and the constructor has looked."""

    def get_extra_state(self) -> dict[str, Any]:
        """Return where the next batch is put, and whether the memory is full."""
        return {"queue_idx": self.queue_idx, "has_been_filled": self.has_been_filled}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on filling the memory there."""
        self.queue_idx = int(state["queue_idx"])
        self.has_been_filled = bool(state["has_been_filled"])


def _check(loss: nn.Module, supported: list[str]) -> None:
    name = type(loss).__name__
    if type(loss).__module__.startswith("pytorch_metric_learning."):
        fits = name in supported
        reason = f"those that pytorch-metric-learning admits are {', '.join(supported)}"
    else:
        fits = all(getattr(loss, trait, None) is True for trait in ("gallery", "mined"))
        reason = "it does not say that it takes a gallery and pairs (gallery = True, mined = True)"
    if not fits:
        raise UserError(f"a memory of batches does not work with {name}: {reason}")
