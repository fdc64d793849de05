"""Intra-batch connections: message passing between the images of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._layers import linear, standardise
from ._require import require_not_negative, require_positive
from ._shared import Loss, unit


class IntraBatchLoss(Loss):
    """Classify each image, and again after all images of the batch have exchanged messages.

    With x the embeddings, f = x / |x| and t the temperature, linear layers give the logits z of the
    images alone, and, after message passing, z'::

        h = A f + a,   then for each layer:
        h = layer norm of (h + attention(h)),   h = layer norm of (h + two linear layers of h)
        z' = B (batch norm of h),   z = W x + b
        L  = mean of -log softmax(z' / t)_y + weight mean of -log softmax(z / t)_y

    The attention has several heads; each image takes messages of all images of the batch, itself
    included, in proportion to the softmax of their products of query and key. Between the two
    linear layers, of 4 d numbers, is a ReLU. Both terms smooth the labels.

    Only the embeddings are used for retrieval; the message passing helps to train them.

    Differs from the paper in:
        * the batch norm uses the statistics of the batch also after ``eval()``; dropout ends there.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d, a multiple of ``heads``.
        layers: of message passing; 1 in the authors' config for CUB-200-2011.
        heads: of the attention; 2 in that config.
        dropout: of attention, messages and linear layers; 0.1 in that config.
        temperature: t; 0.2 in that config.
        smoothing: the share of a label that is spread over all classes. 0.1 is usual, but has no
            source here: the authors' config does not state theirs.
        weight: of the images alone; 1 in that config.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Seidenschwarz, Elezi, Leal-Taixé. Learning Intra-Batch Connections for Deep Metric Learning.
        ICML 2021, arXiv:2102.07753, section 3.
    """

    paper: ClassVar[str] = (
        "Seidenschwarz et al. 2021, Learning Intra-Batch Connections for Deep Metric Learning"
    )
    kind = "classifier"
    cost = "N² + N C"
    sampler = "m_per_class"
    gallery = False
    mined = False
    normalises = False
    random = True
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_permutation": "dropout is drawn by the places in the batch"
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        temperature: float = 0.2,
        smoothing: float = 0.1,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        for name, number in {"layers": layers, "heads": heads}.items():
            if number < 1:
                raise UserError(f"{name} must be at least 1, not {number}")
        if embedding_size % heads:
            raise UserError(f"heads must divide embedding_size, {embedding_size}; {heads} does not")
        for name, share in {"dropout": dropout, "smoothing": smoothing}.items():
            if not 0 <= share < 1:
                raise UserError(f"{name} must be at least 0 and below 1, not {share}")
        require_positive(temperature=temperature)
        require_not_negative(weight=weight)
        self.num_classes = num_classes
        self.layers = layers
        self.heads = heads
        self.dropout = dropout
        self.temperature = temperature
        self.smoothing = smoothing
        self.weight = weight
        self.input = nn.Linear(embedding_size, embedding_size)
        self.passes = nn.ModuleList(_MessagePassing(embedding_size, heads) for _ in range(layers))
        self.gain = nn.Parameter(torch.ones(embedding_size))
        self.of_messages = nn.Linear(embedding_size, num_classes, bias=False)
        self.classifier = nn.Linear(embedding_size, num_classes)
        for layer in (self.of_messages, self.classifier):
            nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean cross entropies after and before the message passing."""
        check_classes(labels, self.num_classes)
        h = linear(self.input, unit(embeddings))
        for layer in self.passes:
            h = layer(h, self.dropout if self.training else 0.0)
        h = standardise(h) * self.gain.to(h.dtype)
        connected = self._entropy(linear(self.of_messages, h), labels.long())
        alone = self._entropy(self.get_logits(embeddings), labels.long())
        return connected + self.weight * alone

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, C) of the images alone."""
        return linear(self.classifier, embeddings)

    def _entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits / self.temperature, targets, label_smoothing=self.smoothing)


class _MessagePassing(nn.Module):
    """One layer of message passing between all images."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.message, self.out = (nn.Linear(size, size) for _ in range(4))
        for layer in (self.query, self.key, self.message, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.first_norm, self.second_norm = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, h: Tensor, dropout: float) -> Tensor:
        h = _normalise(self.first_norm, h + _drop(self._attend(h, dropout), dropout))
        wide = _drop(F.relu(linear(self.wide, h)), dropout)
        return _normalise(self.second_norm, h + _drop(linear(self.narrow, wide), dropout))

    def _attend(self, h: Tensor, dropout: float) -> Tensor:
        query, key, message = (
            linear(layer, h).view(len(h), self.heads, -1).transpose(0, 1)  # (heads, N, d / heads)
            for layer in (self.query, self.key, self.message)
        )
        shares = F.softmax(query @ key.mT / math.sqrt(query.shape[2]), dim=2)
        heard = _drop(shares, dropout) @ message
        return linear(self.out, heard.transpose(0, 1).flatten(1))


def _normalise(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:], layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)


def _drop(x: Tensor, share: float) -> Tensor:
    """Return x with a share of it replaced by 0, the same whatever its type."""
    if not share:
        return x
    kept = torch.rand(x.shape, dtype=torch.float64, device=x.device) >= share
    return x * kept / (1 - share)
