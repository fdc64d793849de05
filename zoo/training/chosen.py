"""The checkpoint of a training that counts: the last, or the best on held-out classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.evaluation.recall import Recall


class Chosen:
    """The checkpoint that is best on held-out classes; of equal ones, the first.

    Args:
        keep: whether any checkpoint may be chosen, not only the last; its weights are then kept.

    Attributes:
        iteration: after which it was measured; 0: none yet.
        recall: Recall@K of the held-out classes by K.
    """

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.iteration = 0
        self.recall: dict[int, float] = {}
        self._weights: dict[str, Tensor] = {}

    def offer(self, iteration: int, recall: Recall, network: nn.Module) -> None:
        """Choose a checkpoint, unless an earlier one has at least its Recall at the first K."""
        if self.keep and self.recall and recall[min(recall)] <= self.recall[min(recall)]:
            return
        self.iteration, self.recall = iteration, dict(recall)
        if self.keep:
            weights = network.state_dict()
            self._weights = {k: w.detach().to("cpu", copy=True) for k, w in weights.items()}

    def restore(self, network: nn.Module) -> None:
        """Load the weights of the chosen checkpoint into a network, unless it has them already."""
        if self._weights:
            network.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the choice so far, saved with the checkpoint so that both always agree."""
        return {"iteration": self.iteration, "recall": self.recall, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved choice."""
        self.iteration, self.recall = state["iteration"], state["recall"]
        self._weights = state.get("weights", {})
