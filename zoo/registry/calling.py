"""A loss and a miner called as training calls them; errors name the component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from zoo.errors import UserError, blaming
from zoo.registry import contracts


def loss_of(
    loss: nn.Module,
    miner: Callable[[Tensor, Tensor], Any] | None,
    embeddings: Tensor,
    labels: Tensor,
    names: tuple[str, str],
    when: str,
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return the loss of some embeddings, and what was mined for it; None without a miner.

    Args:
        loss: called as the losses of pytorch-metric-learning are.
        miner: likewise; None for all pairs.
        embeddings: (N, d).
        labels: (N,).
        names: what messages call the loss and the miner.
        when: what they say of the call.

    Raises:
        UserError: if one of them raises something, or gives what the other cannot use.
    """
    mined: tuple[Any, ...] = ()  # a loss may do without the argument where there is no miner
    if miner is not None:
        with blaming(f"{names[1]} {when}"):
            mined = (miner(embeddings.detach(), labels),)
        # Indices are looked at where that costs nothing: on a GPU it would have to be waited for.
        fault = contracts.mined(mined[0], None if embeddings.is_cuda else len(embeddings))
        if fault:
            raise UserError(f"{names[1]} {when} {fault}")
    with blaming(f"{names[0]} {when}"):
        value: Tensor = loss(embeddings, labels, *mined)
    _check_loss(names[0], value)
    return value, mined[0] if mined else None


def _check_loss(name: str, loss: Any) -> None:
    """Refuse what cannot be minimised; it looks at no number, for which a GPU would wait."""
    if not isinstance(loss, Tensor):
        got = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        got = "a number that does not depend on the embeddings"
    else:
        return
    raise UserError(f"{name} returned {got}; training needs a scalar with a graph")
