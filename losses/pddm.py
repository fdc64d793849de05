"""Position-dependent deep metric (PDDM)."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError, did_you_mean

from ._require import require_not_negative, require_positive
from ._shared import Loss, masks, safe_sqrt, unit
from ._triplets import mean_over

Quadruplets = Literal["batch", "anchor"]


class PDDMLoss(Loss):
    """Learn a similarity that depends on where a pair lies, and find hard pairs by it.

    With f the L2-normalised embeddings, a small network sees the difference of a pair and its
    middle, with r(x) = max(0, x) / |max(0, x)|::

        u = |f_i - f_j|,  v = (f_i + f_j) / 2
        S_ij = W_s max(0, W_c [r(W_u u + b_u), r(W_v v + b_v)] + b_c) + b_s

    A positive pair (i, j) that S finds dissimilar, the negative k that it finds most similar to i,
    and l, that to j, form a quadruplet. The double-header hinge loss asks S and the distances
    d of the embeddings to tell the pair from its negatives::

        L = [alpha + S_ik - S_ij]_+ + [alpha + S_jl - S_ij]_+
            + embedding ([beta + d_ij - d_ik]_+ + [beta + d_ij - d_jl]_+)

    The network is dropped after training: images are searched by their embeddings, as in the paper.

    Differs from the paper in the choice of ``quadruplets="anchor"``: one for each image, with its
    own most dissimilar positive, of which L is the mean. The paper's, ``"batch"``, is the single
    one whose positive pair is the most dissimilar of the batch.

    Args:
        embedding_size: d.
        alpha: margin of S, 0.5 in the paper.
        beta: margin of the distances, 1 in the paper.
        embedding: lambda, the weight of the second part; 0.5 in the paper.
        quadruplets: one for each ``"batch"``, or for each ``"anchor"``.
        hidden: the size of the layers of the network; by default d.

    Shape:
        embeddings (N, d), labels (N,); returns a scalar. An anchor without a positive or a negative
        has no quadruplet; a batch of such anchors gives 0.

    Reference:
        Huang, Loy, Tang. Local Similarity-Aware Deep Feature Embedding. NIPS 2016,
        arXiv:1610.08904, section 3. The layers are as in two public implementations of the unit;
        the values are from memory of the paper.
    """

    paper: ClassVar[str] = "Huang et al. 2016, Local Similarity-Aware Deep Feature Embedding"
    kind = "triplet"
    cost = "N² d²"
    sampler = "m_per_class"
    gallery = False
    mined = False
    expected_failures: ClassVar = {"check_rotation": "the metric unit sees the numbers one by one"}

    def __init__(
        self,
        embedding_size: int,
        alpha: float = 0.5,
        beta: float = 1.0,
        embedding: float = 0.5,
        quadruplets: Quadruplets = "batch",
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        require_positive(alpha=alpha, beta=beta)
        require_not_negative(embedding=embedding)
        if quadruplets not in get_args(Quadruplets):
            hint = did_you_mean(str(quadruplets), get_args(Quadruplets))
            raise UserError(f"quadruplets must be batch or anchor, not {quadruplets!r}{hint}")
        width = embedding_size if hidden is None else hidden
        if width < 1:
            raise UserError(f"hidden must be at least 1, not {hidden}")
        self.alpha = alpha
        self.beta = beta
        self.embedding = embedding
        self.quadruplets = quadruplets
        self.difference = nn.Linear(embedding_size, width)
        self.middle = nn.Linear(embedding_size, width)
        self.combine = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the loss of the hardest quadruplet, or its mean over the anchors."""
        positive, negative = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        f = unit(embeddings)
        s = self.similarities(f)
        least, i = s.detach().masked_fill(~positive, torch.inf).min(1)  # of each anchor: its j
        most = s.detach().masked_fill(~negative, -torch.inf).argmax(1)  # and its k
        anchors = torch.arange(len(f), device=f.device)
        valid = positive.any(1) & negative.any(1)
        if self.quadruplets == "batch":
            hardest = torch.where(valid, least, torch.inf).argmin().reshape(1)
            anchors, valid = anchors[hardest], valid[hardest]
        j = i[anchors]
        k, n = most[anchors], most[j]
        own, of_i, of_j = s[anchors, j], s[anchors, k], s[j, n]
        total = F.relu(self.alpha + of_i - own) + F.relu(self.alpha + of_j - own)
        near, far_i, far_j = (
            _distance(f[a], f[b]) for a, b in ((anchors, j), (anchors, k), (j, n))
        )
        apart = F.relu(self.beta + near - far_i) + F.relu(self.beta + near - far_j)
        return mean_over(total + self.embedding * apart, valid)

    def similarities(self, f: Tensor) -> Tensor:
        """Return S (N, N) of embeddings (N, d) at length 1; its diagonal is 0."""
        first, second = torch.triu_indices(len(f), len(f), offset=1, device=f.device)
        a, b = f[first], f[second]
        u = unit(F.relu(_linear(self.difference, (a - b).abs())))
        v = unit(F.relu(_linear(self.middle, (a + b) / 2)))
        c = F.relu(_linear(self.combine, torch.cat([u, v], 1)))
        scores = _linear(self.score, c).squeeze(1)
        upper = f.new_zeros(len(f), len(f)).index_put((first, second), scores)
        return upper + upper.T


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return safe_sqrt((x - y).square().sum(1))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
