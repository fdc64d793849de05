"""Proxy Anchor."""

from __future__ import annotations

from typing import ClassVar

from pytorch_metric_learning.losses import ProxyAnchorLoss as PMLProxyAnchorLoss

from ._cosine_classifier import PMLClassifier
from ._require import require_not_negative, require_positive


class ProxyAnchorLoss(PMLClassifier):
    """Let the proxy of each class pull its images and push all others, hard ones more.

    With s the cosine of an embedding and a learned proxy p, P all proxies, P+ those whose class is
    in the batch, X+ and X- the images of a proxy's class and of other classes, alpha the scale and
    m the margin::

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X+} exp(-alpha (s(x,p) - m)))
          + 1/|P|  sum_{p in P}  log(1 + sum_{x in X-} exp( alpha (s(x,p) + m)))

    It is pytorch-metric-learning's ProxyAnchorLoss.

    Args:
        num_classes: |P|, the classes of the training data.
        embedding_size: d.
        margin: m, in units of cosine; 0.1 in the paper.
        alpha: the scale; 32 in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar. A gallery and
        mined pairs have no meaning for it.

    Reference:
        Kim, Kim, Cho, Kwak. Proxy Anchor Loss for Deep Metric Learning. CVPR 2020,
        arXiv:2003.13911, section 3.2.
    """

    paper: ClassVar[str] = "Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning"
    related = "multi_similarity"
    cost = "N C"
    sampler = "shuffle"
    kind = "proxy"

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.1, alpha: float = 32.0
    ) -> None:
        require_positive(alpha=alpha)
        require_not_negative(margin=margin)
        pml = PMLProxyAnchorLoss(num_classes, embedding_size, margin=margin, alpha=alpha)
        super().__init__(pml, num_classes)
        self.margin = margin
        self.alpha = alpha
