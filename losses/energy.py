"""Minimum hyperspherical energy (MHE), added to a loss with weights for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.errors import UserError

from ._require import require_not_negative
from ._shared import Loss, unit

_ROWS = ("weight", "proxies", "centers")  # names of weights (..., d)
_COLUMNS = ("W", "fc")  # and of weights (d, C), in pytorch-metric-learning
_LEAST = 1e-4  # of squared distances
_BLOCK_ELEMENTS = 1 << 22


class EnergyLoss(Loss):
    """Add to a loss the energy of its class weights on the sphere, which keeps them apart.

    With w the L2-normalised weights, proxies or centres of another loss, K of them, and s the
    power::

        E = 1 / (K (K - 1)) sum_{i != j} g(|w_i - w_j|)     g(z) = z^-s, and -log z for s = 0
        L = the other loss + weight E

    With ``half_space``, E is that of 2 K points, w and -w, so that weights are neither near nor
    opposite. Distances below 0.01 count as 0.01. E depends on all weights, not on the batch, and
    takes O(K² d); the memory grows as K, as blocks of distances are computed again in the backward
    pass.

    Differs from the paper in:
        * it is only for the last layer, the one of a loss. The paper also adds the energies of a
          network's hidden layers, and has a form with angles in place of distances.
        * several centres of a class, as in SoftTriple, count as points of their own.

    Args:
        loss: any loss with weights for each class, of the zoo or of pytorch-metric-learning.
        weight: of E; 10 in the authors' code for the last layer.
        power: s; 0, 1 or 2 in the paper.
        half_space: see above.
        of: the name of the parameter of ``loss`` that has the weights in its rows, if there are
            several or its name is unusual.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar. With one weight, E is 0. A
        gallery and mined pairs have no meaning for it.

    Reference:
        Liu, Lin, Liu, Liu, Yu, Dai, Song. Learning towards Minimum Hyperspherical Energy.
        NeurIPS 2018, arXiv:1805.09298, section 3.
    """

    paper: ClassVar[str] = "Liu et al. 2018, Learning towards Minimum Hyperspherical Energy"
    kind = "classifier"
    cost = "N C + C²"
    sampler = "shuffle"
    gallery = False
    mined = False
    normalises = False
    check_arguments: ClassVar[Mapping[str, Any]] = {"loss": "normface"}

    def __init__(
        self,
        loss: nn.Module,
        weight: float = 10.0,
        power: float = 2.0,
        half_space: bool = False,
        of: str | None = None,
    ) -> None:
        super().__init__()
        require_not_negative(weight=weight, power=power)
        self.weight = weight
        self.power = power
        self.half_space = half_space
        self.of = of
        self.loss = loss
        self._name, self._in_columns = _find(loss, of)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the other loss and the energy of its weights."""
        value: Tensor = self.loss(embeddings, labels)
        weights = self.loss.get_parameter(self._name).to(embeddings.dtype)
        weights = weights.T if self._in_columns else weights.flatten(0, -2)
        return value + self.weight * _energy(unit(weights), self.power, self.half_space)


def _find(loss: nn.Module, of: str | None) -> tuple[str, bool]:
    """Return the name of the parameter with the weights, and whether they are its columns."""
    known = {name: p for name, p in loss.named_parameters() if p.ndim > 1}
    found = [name for name in known if name.rpartition(".")[2] in _ROWS + _COLUMNS]
    if of is not None:
        found = [name for name in known if name == of]
    if len(found) != 1:
        what = "several parameters" if found else f"no {of}" if of else "no weights for each class"
        choice = f"choose one by of=: {', '.join(known)}" if known else "choose another loss"
        raise UserError(f"energy: {type(loss).__name__} has {what}; {choice}")
    return found[0], found[0].rpartition(".")[2] in _COLUMNS


def _energy(points: Tensor, power: float, half_space: bool) -> Tensor:
    """Return the mean energy of pairs of points (K, d) on the sphere, in blocks of memory."""
    others = torch.cat([points, -points]) if half_space else points
    pairs = len(points) * (len(others) - 1)
    block = max(1, _BLOCK_ELEMENTS // len(others))
    if block >= len(points):
        return _of_rows(points, others, 0, power) / max(1, pairs)
    parts = [
        checkpoint(_of_rows, rows, others, i * block, power, use_reentrant=False)
        for i, rows in enumerate(torch.split(points, block))
    ]
    return torch.stack(parts).sum() / pairs


def _of_rows(rows: Tensor, others: Tensor, start: int, power: float) -> Tensor:
    """Return the sum of energies of some points with all others; they are others[start:...]."""
    squared = (2 - 2 * rows @ others.T).clamp_min(_LEAST)
    energy = -0.5 * squared.log() if power == 0 else squared ** (-power / 2)
    itself = torch.zeros_like(energy, dtype=torch.bool)
    itself.diagonal(start).fill_(True)
    return energy.masked_fill(itself, 0).sum()
