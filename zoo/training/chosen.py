"""Which iterate of a training counts: the last, or the best on classes that were held back."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.evaluation.recall import Recall


class Chosen:
    """The iterate that held-out classes speak for; of equals the first.

    Args:
        keep: whether any iterate may be it, not only the last; its weights are then kept.

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
        """Take an iterate, unless there is one with as high a Recall at the first K."""
        if self.keep and self.recall and recall[min(recall)] <= self.recall[min(recall)]:
            return
        self.iteration, self.recall = iteration, dict(recall)
        if self.keep:
            weights = network.state_dict()
            self._weights = {k: w.detach().to("cpu", copy=True) for k, w in weights.items()}

    def restore(self, network: nn.Module) -> None:
        """Give a network the weights of the chosen iterate, if it does not have them already."""
        if self._weights:
            network.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the choice so far; part of the checkpoint, so that they cannot disagree."""
        return {"iteration": self.iteration, "recall": self.recall, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a choice so far."""
        self.iteration, self.recall = state["iteration"], state["recall"]
        self._weights = state.get("weights", {})
