"""Heated-up softmax embedding."""

from __future__ import annotations

from typing import ClassVar

from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

from ._cosine_classifier import PMLSoftmax
from ._require import require_positive


class HeatedUpLoss(PMLSoftmax):
    """Classify by cosines, at a scale to be lowered in stages, which heats up the softmax.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes and alpha the
    scale, the inverse of the temperature::

        L = mean of -log( exp(alpha f . w_y) / sum_c exp(alpha f . w_c) )

    It is pytorch-metric-learning's NormalizedSoftmaxLoss with temperature 1/scale.

    The paper uses this loss in stages: the network is trained at an intermediate scale and then
    fine-tuned at a lower one, where images that are already classified well still have a gradient,
    so that classes become compact. The lengths of the weights do not matter, so the stages differ
    only in the scale. In the authors' code it is 16, and for the last 20 of 80 epochs a quarter of
    that, with a tenth of the learning rate. In a config of 8,000 iterations, that is::

        loss: {name: heated_up, scale: {from: 16, to: 4, at: 0.75}}
        schedule: {name: step, every: 6000, gamma: 0.1}

    Differs from the authors' code in:
        * the classifier has no biases; theirs has some, which start at 0.
        * the scale stays at 16 unless it has a schedule, as above.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: alpha; 16 in the first stage of the authors' code and 4 in the second.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Zhang, Yu, Karaman, Zhang, Chang. Heated-Up Softmax Embedding. arXiv:1809.04157, 2018.
    """

    paper: ClassVar[str] = "Zhang et al. 2018, Heated-Up Softmax Embedding"
    related = "normface"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(self, num_classes: int, embedding_size: int, scale: float = 16.0) -> None:
        require_positive(scale=scale)
        super().__init__(
            NormalizedSoftmaxLoss(num_classes, embedding_size, temperature=1 / scale), num_classes
        )
        self.scale = scale
