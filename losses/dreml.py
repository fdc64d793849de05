"""Deep randomized ensembles for metric learning (DREML)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

from ._classes import check_classes
from ._levels import OfLevels
from ._shared import Loss, OfImages


class DREMLLoss(OfLevels, OfImages, Loss):
    """Let each learner tell apart groups of classes, which are drawn at random for each.

    The C classes are divided M ways at random, anew for each learner m: meta_m(c) is the meta-class
    of class c, and all meta-classes have the same number of classes, up to one. Each learner
    classifies images by their meta-class::

        L = sum_m mean over the images of -log softmax(W_m f_m + b_m)[meta_m(y)]

    A learner sees a simple task, which it cannot solve by features of single classes; two classes
    are rarely together in all learners. With as many meta-classes as classes, each learner does
    what ``cce`` does.

    The paper's learners are networks of their own, which the backbone ``ensemble`` has
    (:class:`zoo.models.ensemble.Ensemble`). Parts of one embedding (``model.slices``) share the
    network, which then has to solve all tasks.

    Differs from the paper in:
        * all learners see the same batches and are trained at the same time.
        * the weights are learned. ``static=True`` is the paper's: W is the identity, so that the
          numbers of an embedding are the scores of the meta-classes.

    Args:
        level_sizes: the sizes of the learners.
        num_classes: C, the classes of the training data.
        meta_classes: M; 12 or 48 in the paper. With fewer classes than that, as many as there are.
        seed: of the draw of the meta-classes.
        static: whether the classifiers are fixed. The size of each learner must then be M.

    Shape:
        embeddings (N, sum of the sizes), labels (N,) from 0 to num_classes - 1; returns a scalar.
        With one meta-class it is 0. A gallery and mined pairs have no meaning for it.

    Reference:
        Xuan, Souvenir, Pless. Deep Randomized Ensembles for Metric Learning. ECCV 2018,
        arXiv:1808.04469; the draw and the static classifier are those of the authors' code.
    """

    paper: ClassVar[str] = "Xuan et al. 2018, Deep Randomized Ensembles for Metric Learning"
    related = "cce"
    kind = "classifier"
    cost = "N M"
    sampler = "shuffle"
    normalises = False
    expected_failures: ClassVar = {}

    meta: Tensor

    def __init__(
        self,
        level_sizes: Sequence[int],
        num_classes: int,
        meta_classes: int = 12,
        seed: int = 0,
        static: bool = False,
    ) -> None:
        super().__init__(level_sizes)
        if meta_classes < 1:
            raise UserError(f"meta_classes must be at least 1, not {meta_classes}")
        groups = min(meta_classes, num_classes)
        if static and set(self.level_sizes) != {groups}:
            raise UserError(
                f"static classifiers need learners of {groups} numbers, one for each meta-class; "
                f"the levels have {', '.join(map(str, self.level_sizes))}"
            )
        self.num_classes = num_classes
        random = torch.Generator().manual_seed(seed)
        drawn = [torch.randperm(num_classes, generator=random) % groups for _ in self.level_sizes]
        self.register_buffer("meta", torch.stack(drawn))
        classifiers = [nn.Identity() if static else nn.Linear(d, groups) for d in self.level_sizes]
        self.classifiers = nn.ModuleList(classifiers)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the sum of the learners' cross entropies."""
        check_classes(labels, self.num_classes)
        targets = self.meta[:, labels]
        learners = zip(self.classifiers, self.levels(embeddings), targets, strict=True)
        return torch.stack([F.cross_entropy(_scores(c, f), y) for c, f, y in learners]).sum()


def _scores(classifier: nn.Module, f: Tensor) -> Tensor:
    """Return the scores of the meta-classes, in the type of the embeddings."""
    if not isinstance(classifier, nn.Linear):
        return f
    return F.linear(f, classifier.weight.to(f.dtype), classifier.bias.to(f.dtype))
