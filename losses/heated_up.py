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
    so that classes become compact. This loss is one stage with a fixed scale. For the next stage,
    continue with a loss of a lower ``scale`` that has loaded the ``state_dict`` of the first, that
    is, the weights of the classes, whose lengths do not matter. This requires your own training
    loop, as ``zoo`` resumes a run only with the same settings.

    Differs from the paper in:
        * the scale is not lowered within a run. You choose the scales of the stages: 16 is for a
          first one, and not known to be the paper's.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: alpha of this stage.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is only
        one class. A gallery and mined pairs have no meaning for it.

    Reference:
        Zhang, Yu, Karaman, Zhang, Chang. Heated-Up Softmax Embedding. arXiv:1809.04157, 2018.
    """

    paper: ClassVar[str] = "Zhang et al. 2018, Heated-Up Softmax Embedding"
    kind = "classifier"
    cost = "N C"
    sampler = "shuffle"

    def __init__(self, num_classes: int, embedding_size: int, scale: float = 16.0) -> None:
        require_positive(scale=scale)
        super().__init__(
            NormalizedSoftmaxLoss(num_classes, embedding_size, temperature=1 / scale), num_classes
        )
        self.scale = scale
