"""Heated-up softmax embedding."""

from __future__ import annotations

from typing import ClassVar

from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

from ._cosine_classifier import PMLClassifier
from ._require import require_positive


class HeatedUpLoss(PMLClassifier):
    """Classify by cosines at a scale that is lowered in stages, which heats the softmax up.

    With f the L2-normalised embeddings, w the L2-normalised weights of the classes and alpha the
    scale, the inverse of the temperature::

        L = mean of -log( exp(alpha f . w_y) / sum_c exp(alpha f . w_c) )

    It is pytorch-metric-learning's NormalizedSoftmaxLoss with temperature 1/scale.

    The paper's heating up is this loss in stages: the network is trained at an intermediate scale
    and then fine-tuned at a lower one, where images that are classified well already still have a
    gradient, so that classes become compact. This loss is one stage, of a fixed scale. For the next
    one the network goes on with a loss of a lower ``scale`` that has loaded the ``state_dict`` of
    the first: the weights of the classes, whose lengths make no difference. That takes a training
    loop of your own, as ``zoo`` resumes a run only with the settings that it had.

    Differs from the paper in:
        * nothing is lowered within a run. The scales of the stages are to be chosen: 16 is that of
          a first one, not known to be the paper's.

    Args:
        num_classes: C, the classes of the training data.
        embedding_size: d.
        scale: alpha of this stage.

    Shape:
        embeddings (N, d), labels (N,) from 0 to C - 1; returns a scalar, 0 if there is one class
        only. A gallery and mined pairs have no meaning for it.

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
