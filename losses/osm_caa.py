"""Weighted contrastive loss with online soft mining and class-aware attention (OSM-CAA)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._require import require_not_negative, require_positive
from ._shared import Loss, masks, safe_sqrt, unit, unit_distances


class OSMCAALoss(Loss):
    """Contrast all pairs, with more weight on near pairs and well classified images.

    With f the L2-normalised embeddings, d their Euclidean distances, and c a learned vector for
    each class::

        s_ij = exp(-d_ij² / sigma²) of positives, max(0, alpha - d_ij) of negatives     (mining)
        a_i  = exp(f_i . c_y) / sum_k exp(f_i . c_k),   a_ij = min(a_i, a_j)            (attention)
        w_ij = s_ij a_ij, divided by its sum over the positive or the negative pairs

        L = (1 - balance) 1/2 sum_pos w_ij d_ij² + balance 1/2 sum_neg w_ij max(0, alpha - d_ij)²
            + ce_weight * mean_i -log a_i

    The weights are constants. The last term is the cross entropy that the class vectors learn from;
    it moves the embeddings as well. So the gradient of the rest is *not* the derivative of its
    value.

    Differs from the authors' code in:
        * sigma. Their s_ij of positives is exp(-d_ij² / (2 sigma²)), that of the paper, which is
          the default, exp(-d_ij² / sigma²). With 0.8 for both, theirs is ``sigma: 1.1314`` here.
        * the attention is the probability a_i itself, as in the paper's formula; in their code it
          is exp(-(1 - a_i)² / (2 · 0.68²)), which is ``attention_sigma: 0.68``.
        * the classifier. In their code it is on the pooled features, not on the embedding, has
          biases, and its cross entropy weighs the images by exp(-(a_i - 0.5)² / (2 · 0.18²)).

    Args:
        num_classes: the classes of the training data.
        embedding_size: d.
        alpha: negatives farther than this do not count; 1.2 in the paper.
        sigma: width of the weights of positives; 0.8 in the paper, see above.
        balance: of the negative term, from 0 to 1; 0.5 in the paper.
        ce_weight: of the cross entropy; with 0 the class vectors stay small and random, and all
            images have about the same attention.
        attention_sigma: None for the attention of the paper's formula, or the width of that of the
            authors' code, 0.68.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1, gallery ``ref_emb`` (M, d) with
        such labels; returns a scalar. A term without pairs is 0; the cross entropy remains. Mined
        pairs have no meaning for it, as it weighs all pairs itself.

    Reference:
        Wang, Hua, Kodirov, Hu, Robertson. Deep Metric Learning by Online Soft Mining and
        Class-Aware Attention. AAAI 2019, arXiv:1811.01459; checked with the authors' code.
    """

    paper: ClassVar[str] = (
        "Wang et al. 2019, Deep Metric Learning by Online Soft Mining and Class-Aware Attention"
    )
    related = "contrastive"
    kind = "pair"
    sampler = "m_per_class"
    cost = "N² + N C"
    mined = False
    expected_failures: ClassVar[Mapping[str, str]] = {
        "check_gradcheck": "its weights are constants, so that the class vectors learn only from "
        "the cross entropy"
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 1.2,
        sigma: float = 0.8,
        balance: float = 0.5,
        ce_weight: float = 1.0,
        attention_sigma: float | None = None,
    ) -> None:
        super().__init__()
        if not 0 < alpha <= 2:
            raise UserError(f"alpha is a distance on the unit sphere, above 0 to 2, not {alpha}")
        require_positive(sigma=sigma)
        if not 0 <= balance <= 1:
            raise UserError(f"balance must be from 0 to 1, not {balance}")
        require_not_negative(ce_weight=ce_weight)
        if attention_sigma is not None:
            require_positive(attention_sigma=attention_sigma)
        self.num_classes = num_classes
        self.alpha = alpha
        self.sigma = sigma
        self.balance = balance
        self.ce_weight = ce_weight
        self.attention_sigma = attention_sigma
        self.class_vectors = nn.Parameter(0.01 * torch.randn(num_classes, embedding_size))

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the weighted contrastive loss and the cross entropy."""
        f = unit(embeddings)
        log_a = self._log_attention(f, labels)
        g, log_b = f, log_a
        if ref_emb is not embeddings:
            g = unit(ref_emb)
            log_b = self._log_attention(g, ref_labels)
        squared = unit_distances(f, g)
        near = (self.alpha - safe_sqrt(squared)).clamp_min(0)
        positive, negative = masks(embeddings, labels, None, ref_emb, ref_labels)
        log_a_ij = self._weight(torch.minimum(log_a.detach()[:, None], log_b.detach()))
        # In logarithms: a of a badly misplaced image may be too small for float32.
        pull = _weighted(squared, log_a_ij - squared.detach() / self.sigma**2, positive)
        push = _weighted(near.square(), log_a_ij + near.detach().log(), negative & (near > 0))
        contrast = (1 - self.balance) * pull + self.balance * push
        return contrast / 2 - self.ce_weight * log_a.mean()

    def _log_attention(self, f: Tensor, labels: Tensor) -> Tensor:
        check_classes(labels, self.num_classes)
        logits = F.linear(f, self.class_vectors.to(f.dtype))
        return -F.cross_entropy(logits, labels.long(), reduction="none")

    def _weight(self, log_a: Tensor) -> Tensor:
        """Return the logarithm of the attention."""
        if self.attention_sigma is None:
            return log_a
        return -((log_a.expm1() / self.attention_sigma) ** 2) / 2

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient pair by pair, in loops, in float64, for ``zoo.checks``."""
        x, y = embeddings.detach().double().requires_grad_(), labels.tolist()
        f = x / x.norm(dim=1, keepdim=True)
        a = [(self.class_vectors.detach().double() @ f[i]).softmax(0)[c] for i, c in enumerate(y)]
        loss = -self.ce_weight * torch.stack(a).log().mean()
        for same, share in ((True, 1 - self.balance), (False, self.balance)):
            weights, terms = [], []
            for i, j in itertools.combinations(range(len(y)), 2):
                if (y[i] == y[j]) is same:
                    d = (f[i] - f[j]).norm()
                    near = (self.alpha - d).clamp_min(0)
                    s = torch.exp(-((d / self.sigma) ** 2)) if same else near
                    attention = min(a[i], a[j])
                    if self.attention_sigma is not None:
                        attention = torch.exp(-(((1 - attention) / self.attention_sigma) ** 2) / 2)
                    weights.append((s * attention).detach())
                    terms.append(d**2 if same else near**2)
            total = sum(float(w) for w in weights) or 1.0
            for w, term in zip(weights, terms, strict=True):
                loss = loss + share / 2 * w / total * term
        (gradient,) = torch.autograd.grad(loss, x)
        return gradient


def _weighted(terms: Tensor, log_weights: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of the terms that count, weighted by exp of the logarithms; 0 for none."""
    log_weights = torch.where(counts, log_weights, -1e30)
    weights = torch.where(counts, log_weights.flatten().softmax(0).view_as(terms), 0)
    return (weights * torch.where(counts, terms, 0)).sum()
