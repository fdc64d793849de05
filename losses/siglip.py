"""The pairwise sigmoid loss of SigLIP, for labels."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from ._neighbours import softplus
from ._require import require_positive
from ._shared import AnchorLoss, Masks, Mean, unit


class SigLIPLoss(AnchorLoss):
    """Classify every pair on its own as a match or not, by logistic regression on its cosine.

    With S the cosines, z_ij = 1 for two images of a class, else -1, and t and b learned::

        L = mean_i of sum_j -log sigmoid(z_ij (t S_ij + b))

    over the N images i and all others j. No pair depends on others, as in a softmax. The bias
    starts low, since most pairs are no matches.

    Differs from the paper in:
        * labels. The paper has N images and N texts, of which each image matches one. Here images
          are compared with each other, and each with all of its class. Texts as gallery
          ``ref_emb``, with labels that number the pairs, give the paper's loss.

    Args:
        scale: t at the start; the parameter is its logarithm, as in the paper. 10 there.
        bias: b at the start; -10 in the paper.
        learn: whether t and b are trained, with the learning rate of the loss.

    Shape:
        embeddings (N, d), labels (N,), gallery ``ref_emb`` (M, d); returns a scalar. Without
        positives it learns from negatives, and the other way round; a batch of one image gives 0.

    Reference:
        Zhai, Mustafa, Kolesnikov, Beyer. Sigmoid Loss for Language Image Pre-Training. ICCV 2023,
        arXiv:2303.15343, section 3.2.
    """

    paper: ClassVar[str] = "Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training"
    related = "binomial_deviance, ntxent"
    kind = "pair"
    cost = "N²"
    sampler = "m_per_class"

    def __init__(self, scale: float = 10.0, bias: float = -10.0, learn: bool = True) -> None:
        super().__init__()
        require_positive(scale=scale)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learn)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn)

    def terms(self, anchors: Tensor, gallery: Tensor, pairs: Masks) -> list[Mean]:
        """Return the mean over the images of the sum over their pairs."""
        f = unit(anchors)
        cosines = f @ (f if gallery is anchors else unit(gallery)).T
        logits = self.log_scale.to(f.dtype).exp() * cosines + self.bias.to(f.dtype)
        wrong = softplus(torch.where(pairs.positive, -logits, logits))
        return [Mean.of((wrong * torch.add(*pairs.times(wrong.dtype))).sum(1))]
