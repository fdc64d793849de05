"""Matching networks with full context embeddings (FCE)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._neighbours import neighbour_nll
from ._require import require_positive
from ._shared import Loss, unit


class MatchingNetFCELoss(Loss):
    """Vote like ``matching_net``, with embeddings that have seen the whole support set.

    A support set S of images with embeddings g'(x_i) is read as a sequence by an LSTM in both
    directions (appendix A.2), and a query with embedding f'(x) reads S by attention in K steps of
    another LSTM (appendix A.1)::

        g(x_i)       = forward h_i + backward h_i + g'(x_i)
        h^_k, c_k    = LSTM(f'(x), [h_(k-1), r_(k-1)], c_(k-1))
        h_k          = h^_k + f'(x)
        r_(k-1)      = sum_i a_i g(x_i),   a = softmax_i(h_(k-1) . g(x_i))
        f(x)         = h_K

    The query is classified by the softmax of s times the cosines of f(x) and g(x_i), and the value
    is the mean over the queries of -log of the share of its class.

    In a batch, S has ``shots`` images of each class, drawn at random, in a random order: a sequence
    has one, though a set has none. All others are queries. Images that are alone in their class are
    in S, and help to tell the others.

    The LSTMs are dropped after training: an image is searched by f', as there is no support set.

    Differs from the paper in:
        * an LSTM has d numbers in each direction; f', g', f and g are all of length 1 at the input
          of a layer or of the vote.
        * scale, see :class:`zoo.losses.matching_net.MatchingNetLoss`.

    Args:
        embedding_size: d.
        scale: s, 1 in the paper.
        shots: images of each class in the support set; 1 or 5 in the paper.
        steps: K, 5 in a public implementation; the paper does not fix it. 0 leaves f = f'.
        context: False leaves f = f' and g = g': the paper's other version, on the same tasks.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. A gallery ``ref_emb`` (M, d) is the
        support set, in its own order, and all images are queries. Queries without support of their
        class are left out; a batch of such queries gives 0, and so does one class.

    Reference:
        Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra. Matching Networks for One Shot
        Learning. NIPS 2016, arXiv:1606.04080, section 2.1 and appendix A.
    """

    paper: ClassVar[str] = "Vinyals et al. 2016, Matching Networks for One Shot Learning"
    related = "matching_net"
    kind = "list"
    cost = "N² d + N d²"
    sampler = "m_per_class"
    mined = False
    random: ClassVar[bool] = True
    expected_failures: ClassVar = {
        "check_permutation": "the support set, and its order, are drawn at random by the places of "
        "images in the batch",
        "check_gallery": "a sequence has an order: so has the gallery, which is the support set",
        "check_rotation": "the LSTMs see the numbers of an embedding one by one",
    }
    check_arguments: ClassVar[dict[str, Any]] = {"steps": 2}

    def __init__(
        self,
        embedding_size: int,
        scale: float = 1.0,
        shots: int = 1,
        steps: int = 5,
        context: bool = True,
    ) -> None:
        super().__init__()
        require_positive(scale=scale)
        if shots < 1:
            raise UserError(f"shots must be at least 1, not {shots}")
        if steps < 0:
            raise UserError(f"steps must be at least 0, not {steps}")
        self.scale = scale
        self.shots = shots
        self.steps = steps
        self.context = context
        self.forth = nn.LSTMCell(embedding_size, embedding_size)
        self.back = nn.LSTMCell(embedding_size, embedding_size)
        self.attend = nn.LSTMCell(2 * embedding_size, embedding_size)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean over the queries."""
        queries, same = unit(embeddings), labels[:, None] == ref_labels
        if ref_emb is embeddings:
            support, order = _draw(same, self.shots)
            g = self._read(queries, support, order)
            counts = ~support[:, None] & support  # of queries, with the support set
        else:
            order = torch.arange(len(ref_emb), device=queries.device)
            support, counts = torch.ones_like(order, dtype=torch.bool), torch.ones_like(same)
            g = self._read(unit(ref_emb), support, order)
        f = self._attend(queries, g, support)
        return neighbour_nll(self.scale * unit(f) @ unit(g).T, same & counts, ~same & counts)

    def _read(self, x: Tensor, support: Tensor, order: Tensor) -> Tensor:
        """Return g of each image (N, d); only those of the support set have a meaning.

        To read it in order without waiting for its size, all images are read, those that do not
        belong to it at the end.
        """
        if not self.context:
            return x
        last = len(x) * (~support).long()
        forth, back = (order + last).argsort(), (len(x) - order + last).argsort()
        read = [
            _run(cell, x[rows])[rows.argsort()]
            for cell, rows in ((self.forth, forth), (self.back, back))
        ]
        return read[0] + read[1] + x

    def _attend(self, x: Tensor, g: Tensor, support: Tensor) -> Tensor:
        """Return f of each query (N, d)."""
        weights = _weights(self.attend, x.dtype)
        h, c = x, torch.zeros_like(x)
        for _ in range(self.steps if self.context else 0):
            attention = (h @ g.T).masked_fill(~support, -torch.inf).softmax(1)
            state, c = torch.lstm_cell(torch.cat([x, attention @ g], 1), (h, c), *weights)
            h = state + x
        return h


def _draw(same: Tensor, shots: int) -> tuple[Tensor, Tensor]:
    """Return which images are in the support set (N,), and a random order (N,) of all."""
    keys = torch.rand(2, len(same), device=same.device)
    rank = (same & (keys[0] < keys[0][:, None])).sum(1)  # of an image in its class
    return rank < shots, keys[1].argsort()


def _run(cell: nn.LSTMCell, x: Tensor) -> Tensor:
    """Return the output of an LSTM after each row of x (N, d)."""
    weights = _weights(cell, x.dtype)
    h, c = torch.zeros_like(x[:1]), torch.zeros_like(x[:1])
    outputs = []
    for row in torch.split(x, 1):
        h, c = torch.lstm_cell(row, (h, c), *weights)
        outputs.append(h)
    return torch.cat(outputs)


def _weights(cell: nn.LSTMCell, dtype: torch.dtype) -> list[Tensor]:
    return [w.to(dtype) for w in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
