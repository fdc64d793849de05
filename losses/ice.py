"""Instance cross entropy (ICE)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.errors import UserError
from zoo.support.precision import full_float32, upcast

from ._shared import Loss, mask_of, only_finite, unit_sphere

_FAR = 1e30
_MOST_SCALE = 1e9  # far below _FAR, and larger than any useful scale
_EXACT = 40.0  # from here on log(1 + exp(x)) rounds to x, in float64 too; exp(40) is finite
_BLOCK_ELEMENTS = 1 << 22  # anchors x gallery in a block: 16 MB for each temporary


class ICELoss(Loss):
    """Match every positive against all negatives of its anchor, with more weight on hard ones.

    With f the L2-normalised embeddings, S = f f^T, P(a) and Q(a) the positives and negatives of
    anchor a, and s the scale, the probability that a matches its positive i is (Eq. 3, with s)::

        p(i|a) = exp(s S_ai) / (exp(s S_ai) + sum_{j in Q(a)} exp(s S_aj))

    The **value** is the mean of -log p(i|a) over the ordered positive pairs whose anchor has a
    negative. The **gradient**, with ``reweight=True``, is the paper's final one (Eq. 13 to 15): the
    weights 1 - p of positives and p of negatives are normalised so that either set of an anchor
    sums to 1/(2N)::

        dL/df_i = -w(i;a) f_a      w(i;a) = 1/(2N) (1 - p(i|a)) / sum_{k in P(a)} (1 - p(k|a))
        dL/df_j = +w(j;a) f_a      w(j;a) = 1/(2N) exp(s S_aj) / sum_{k in Q(a)} exp(s S_ak)

    For more than two images per class this is *not* the derivative of any scalar. The second
    weight is the paper's with the sum over the positives cancelled, which makes it O(N²) without
    enumerating positives x negatives; the first is computed in logarithms, so that nothing
    vanishes where p rounds to 1.

    Differs from the paper in:
        * the value is a mean and has the scale s, the paper's Eq. 3 to 5 are a sum and have none:
          there, s only changes the weights of the gradient (Eq. 11 to 15). Only the gradient is
          used for learning.
        * N counts the anchors that have a positive and a negative; the paper assumes all have.
        * ``anchor_gradient``: the paper gives the derivatives of positives and negatives, but not
          the anchor's. ``True`` also moves the anchor, ``False`` is the literal reading. On
          characters both end at the same Recall@K (docs/results.md).

    Args:
        scale: s, at least 1 in the paper; 64 on Stanford Online Products.
        reweight: the paper's normalised weights; False gives the plain derivative of the value.
        anchor_gradient: whether the anchor receives its share of the gradient.
        block: anchors processed together, for which the memory is O(block x N). By default as many
            as keep temporaries at 16 MB; the gradient does not depend on it.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. A batch
        without positives or without negatives gives 0. The positives and the negatives of an anchor
        are sets: a pair that was mined more than once counts once.

    Reference:
        Wang, Kodirov, Hua, Robertson. Instance Cross Entropy for Deep Metric Learning.
        arXiv:1911.09976.
    """

    paper: ClassVar[str] = "Wang et al. 2019, Instance Cross Entropy for Deep Metric Learning"
    related = "ntxent, nca, rll"
    kind = "list"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(
        self,
        scale: float = 64.0,
        reweight: bool = True,
        anchor_gradient: bool = True,
        block: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 < scale <= _MOST_SCALE:
            raise UserError(f"scale must be positive and at most {_MOST_SCALE:.0e}, not {scale}")
        if block is not None and block < 1:
            raise UserError(f"block must be at least 1, not {block}")
        self.scale = float(scale)
        self.reweight = reweight
        self.anchor_gradient = anchor_gradient
        self.block = block

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the mean of -log p(i|a)."""
        alone = ref_emb is embeddings
        shape = (len(embeddings), len(ref_emb))
        pairs = _Pairs(shape, labels, ref_labels, indices_tuple, exclude_self=alone)
        rows = slice(0, len(embeddings))
        return self._mean(embeddings, None if alone else ref_emb, pairs, rows)

    def part(self, embeddings: Tensor, labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return what some anchors add to the loss of a batch, see :meth:`AnchorLoss.part`.

        The labels tell how many pairs and anchors the batch has, so this is a part of the mean; the
        counts of all parts are 1 together.
        """
        with full_float32(embeddings.device):
            x, one = only_finite(upcast(embeddings))
            pairs = _Pairs((len(x), len(x)), labels, labels, None, exclude_self=True)
            mean = self._mean(x, None, pairs, rows, _counts(labels)) * one
            return mean.reshape(1), x.new_full((1,), len(x[rows]) / len(x))

    def _mean(
        self,
        embeddings: Tensor,
        gallery: Tensor | None,
        pairs: _Pairs,
        rows: slice,
        counts: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the mean of -log p(i|a), or the part of it that some anchors have."""
        others = embeddings if gallery is None else gallery
        block = self.block or max(1, _BLOCK_ELEMENTS // max(1, len(others)))
        gradient = (self.scale, self.reweight, self.anchor_gradient)
        result: Tensor = _InstanceCrossEntropy.apply(
            embeddings, gallery, pairs, rows, counts, block, *gradient
        )
        return result

    def reference_gradient(self, embeddings: Tensor, labels: Tensor) -> Tensor | None:
        """Return Eq. 13 to 15 in plain loops, in float64; None if it is the value's derivative.

        ``zoo.checks`` compares the gradient with it.
        """
        if self.anchor_gradient and not self.reweight:
            return None
        x, y = embeddings.detach().double().requires_grad_(), labels.tolist()
        f = F.normalize(x)
        e = (self.scale * (f @ f.T - 1)).exp().tolist()  # exp(s S), up to what cancels
        others = {a: [i for i in range(len(y)) if i != a] for a in range(len(y))}
        positives = {a: [i for i in others[a] if y[i] == y[a]] for a in others}
        negatives = {a: [j for j in others[a] if y[j] != y[a]] for a in others}
        anchors = [a for a in others if positives[a] and negatives[a]]
        pairs = sum(len(positives[a]) for a in anchors)
        grad = torch.zeros_like(x)
        for a in anchors:
            z = sum(e[a][j] for j in negatives[a])
            miss = {i: z / (e[a][i] + z) for i in positives[a]}  # 1 - p(i|a)
            total = sum(miss.values())
            hit = {j: total * e[a][j] / z for j in negatives[a]}  # sum over i of p(j|a,i)
            share = 1 / (2 * len(anchors) * total) if self.reweight else self.scale / pairs
            for b, w in [*((i, -w) for i, w in miss.items()), *hit.items()]:
                grad[b] += share * w * f[a].detach()
                if self.anchor_gradient:
                    grad[a] += share * w * f[b].detach()
        (pulled_back,) = torch.autograd.grad(f, x, grad)
        return pulled_back


class _Pairs:
    """The positives and negatives in the gallery of each anchor, a block at a time."""

    def __init__(
        self,
        shape: tuple[int, int],
        labels: Tensor,
        ref_labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        exclude_self: bool,
    ) -> None:
        self.labels, self.ref_labels, self.exclude_self = labels, ref_labels, exclude_self
        self.mined = None
        if indices_tuple is not None:
            # A triplet (a, p, n) stands for the pairs (a, p) and (a, n).
            a1, p, a2, n = (*indices_tuple[:2], *indices_tuple[-2:])
            if len(indices_tuple) == 3:
                a2 = indices_tuple[0]
            self.mined = (mask_of(a1, p, shape), mask_of(a2, n, shape))

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return 0/1 masks (stop - start, M) of the positives and of all that are not negatives."""
        if self.mined is not None:
            positive, negative = (mask[start:stop].to(dtype) for mask in self.mined)
            return positive, 1 - negative
        no_negative = (self.labels[start:stop, None] == self.ref_labels[None, :]).to(dtype)
        positive = no_negative
        if self.exclude_self:
            positive = no_negative.clone()
            positive.diagonal(start).zero_()
        return positive, no_negative


def _counts(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many positive pairs and how many anchors of a batch count."""
    ordered = labels.sort().values  # a GPU would have to wait for torch.unique
    of_own = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    counts = (of_own > 1) & (of_own < len(labels))
    return ((of_own - 1) * counts).sum(), counts.sum()


class _InstanceCrossEntropy(torch.autograd.Function):
    """The value, with a separate gradient: for N_c > 2 it is not the derivative of any scalar.

    ``counts`` are the pairs and anchors of the batch where only some anchors are given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        ref_emb: Tensor | None,
        pairs: _Pairs,
        of: slice,
        counts: tuple[Tensor, Tensor] | None,
        block: int,
        scale: float,
        reweight: bool,
        anchor_gradient: bool,
    ) -> Tensor:
        anchors = unit_sphere(embeddings)
        gallery = anchors if ref_emb is None else unit_sphere(ref_emb)
        to_gallery = torch.zeros_like(gallery.f)
        to_anchors = to_gallery if ref_emb is None else torch.zeros_like(anchors.f)
        total, n_pairs, n_anchors = anchors.f.new_zeros(3).unbind()
        for start in range(of.start, of.stop, block):
            rows = slice(start, min(start + block, of.stop))
            logits = (anchors.f[rows] @ gallery.f.T).mul_(scale)
            masks = pairs.rows(rows.start, rows.stop, logits.dtype)
            matched = _match(logits, *masks, reweight)
            weights = matched.weights
            if anchor_gradient and ref_emb is None and rows == slice(0, len(embeddings)):
                weights = weights + weights.T  # one product for both ends of each pair
            elif anchor_gradient:
                to_anchors[rows] += weights @ gallery.f
            to_gallery.addmm_(weights.T, anchors.f[rows])
            total = total + matched.total
            n_pairs = n_pairs + matched.pairs
            n_anchors = n_anchors + matched.anchors
        n_pairs, n_anchors = (n.to(total).clamp_min(1) for n in counts or (n_pairs, n_anchors))
        # d/dS of the mean of -log p is s times its weights; the paper's weights are used unchanged.
        share = 0.5 / n_anchors if reweight else scale / n_pairs
        to_embeddings = anchors.pull_back(to_anchors, share)
        to_ref = None if ref_emb is None else gallery.pull_back(to_gallery, share)
        ctx.save_for_backward(to_embeddings, to_ref)
        return total / n_pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_embeddings, to_ref = ctx.saved_tensors
        return grad * to_embeddings, None if to_ref is None else grad * to_ref, *[None] * 7


class _Matched(NamedTuple):
    """A block's signed weights (B, M), sum of -log p, positive pairs and anchors that count."""

    weights: Tensor
    total: Tensor
    pairs: Tensor
    anchors: Tensor


def _match(logits: Tensor, positive: Tensor, no_negative: Tensor, reweight: bool) -> _Matched:
    """Weigh the positives (minus) and negatives (plus) of a block of anchors; logits are s S.

    The masks are numbers, 0 or 1, and excluded values become -1e30, whose exponential is 0: on a
    CPU this takes a tenth of the time of masked_fill, and every number stays finite.
    """
    hardness = torch.add(logits, no_negative, alpha=-_FAR)
    hardest = hardness.amax(1, keepdim=True)
    weights = torch.softmax(hardness, 1)  # exp(s S_aj - Z_a)
    z = hardest - weights.amax(1, keepdim=True).log_()
    gap = z - logits
    log_weight = F.logsigmoid(gap)  # log(1 - p)
    nll = F.softplus(gap, threshold=_EXACT)  # -log p
    positives = positive.sum(1, keepdim=True)
    valid = ((positives > 0) & (hardest > -_FAR / 2)).to(logits.dtype)
    total = torch.linalg.vecdot(nll, positive).unsqueeze(1) * valid
    log_weight.add_(positive - 1, alpha=_FAR)
    if reweight:
        weights -= torch.softmax(log_weight, 1)
    else:
        to_positives = log_weight.exp_()
        weights *= to_positives.sum(1, keepdim=True)
        weights -= to_positives
    weights *= valid
    return _Matched(weights, total.sum(), (positives * valid).sum(), valid.sum())
