"""ProxyNCA++."""

from __future__ import annotations

from typing import ClassVar

from .proxy_nca import ProxyNCALoss


class ProxyNCAPPLoss(ProxyNCALoss):
    """Raise the probability that an image is assigned to the learned proxy of its class.

    With D the squared Euclidean distances between L2-normalised embeddings and L2-normalised
    proxies p, one for each class, and s the scale, the inverse of the temperature::

        L = mean of -log( exp(-s D(x, p_y)) / sum_z exp(-s D(x, p_z)) )

    It is Proxy-NCA with the positive in the sum, which makes the fraction a probability, and a low
    temperature. Proxies start normally distributed, as in the authors' code.

    These two of the paper's changes are the loss's. The others belong to a config:

    * global max pooling: ``model.pooling: max``;
    * batches of some images of each class: ``sampler: {name: m_per_class, classes: 8,
      per_class: 4}`` in the authors' config for CUB-200-2011;
    * fast proxies: ``optimizer.loss_multiplier``; the authors' is 1e5, with an Adam whose eps of 1
      makes its steps small;
    * layer normalisation of the pooled features: no config sets it.

    Args:
        num_classes: the classes of the training data.
        embedding_size: d.
        scale: s; 9, a temperature of 1/9, in the paper.

    Shape:
        embeddings (N, d), labels (N,) from 0 to num_classes - 1; returns a scalar, 0 if there is
        only one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Teh, DeVries, Taylor. ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component
        Analysis. ECCV 2020, arXiv:2004.01113, section 3.
    """

    paper: ClassVar[str] = (
        "Teh et al. 2020, ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component "
        "Analysis"
    )
    related = "proxy_nca"
    kind = "proxy"
    cost = "N C"
    sampler = "m_per_class"

    def __init__(self, num_classes: int, embedding_size: int, scale: float = 9.0) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, include_positive=True)
