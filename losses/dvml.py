"""Deep variational metric learning (DVML)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UserError

from ._levels import OfLevels
from ._networks import apply, perceptron
from ._require import require_not_negative
from ._shared import Loss, unit
from .triplet_semihard import TripletSemihardLoss


class DVMLLoss(OfLevels, Loss):
    """Separate what varies within classes, and learn from embeddings that vary as they do.

    An embedding z is to be what is common to a class. A second network says from features y how an
    image differs from that, as a normal distribution over embeddings; drawn differences are added
    to the embedding, and a decoder gives back the features. z and y have length sqrt(d)::

        v ~ N(mu(y), diag(exp(s(y)))),   T times for each image
        L = kl            mean KL(N(mu, exp(s)) || N(0, 1))
          + reconstruction mean |y - decoder(z + v)|²
          + synthetic     mean over the T draws of L_metric(z + v)
          + invariant     L_metric(z)

    mu and s are linear, the decoder has two layers; all are dropped after training. ``release`` is
    the share of the decoder's gradient that reaches the embedding: 0 in the first phase of the
    paper, 1 in the second, which a schedule can say.

    A loss sees only embeddings, so z is the first level, and y the last. With one level they are
    the same, and y is then a constant to the decoder, which could otherwise be pleased by shrinking
    it. With two (``model.slices``), a search uses both, and the result of the first level alone is
    that of the method.

    Differs from the paper in:
        * y is the embedding, or another linear function of the pooled features, instead of the
          features themselves.
        * the first two terms are means over the numbers of a vector, not sums.
        * z and y have a fixed length, so that their numbers vary as much as the noise. Otherwise
          embeddings grow until the noise does not matter.

    Args:
        level_sizes: the size of the embedding, or of z and y.
        loss: L_metric; by default ``triplet_semihard``.
        kl, reconstruction, synthetic, invariant: the weights; 1, 1, 0.1, 1 in the first phase of
            the paper, 0.8, 1, 0.2, 0.8 in the second. With synthetic 0, only the last term trains
            the embedding.
        release: from 0 to 1.
        samples: T, 20 in the paper.
        hidden: the inner size of the decoder, 512 in the paper.

    Shape:
        embeddings (N, sum of the sizes), labels (N,); returns a scalar. A batch of one image has
        the first two terms, and what the loss gives.

    Reference:
        Lin, Duan, Dong, Lu, Zhou. Deep Variational Metric Learning. ECCV 2018, section 3. The
        weights, T and the phases are those that GeDML, of the authors' group, gives for it.
    """

    paper: ClassVar[str] = "Lin et al. 2018, Deep Variational Metric Learning"
    related = "triplet_semihard"
    kind = "triplet"
    cost = "T N²"
    sampler = "m_per_class"
    random: ClassVar[bool] = True
    expected_failures: ClassVar = {
        "check_permutation": "what is added to an image is drawn at random, by its place",
        "check_rotation": "its networks are for certain axes",
        "check_gradcheck": "the features are constants to the decoder; the tests of this loss "
        "compare each gradient with that of its terms",
        "check_float32": "the features are constants to the decoder; the tests of this loss "
        "compare float32 with float64",
    }
    check_arguments: ClassVar[dict[str, Any]] = {"samples": 3, "hidden": 16}

    def __init__(
        self,
        level_sizes: Sequence[int],
        loss: nn.Module | None = None,
        kl: float = 1.0,
        reconstruction: float = 1.0,
        synthetic: float = 0.1,
        invariant: float = 1.0,
        release: float = 0.0,
        samples: int = 20,
        hidden: int = 512,
    ) -> None:
        super().__init__(level_sizes)
        weights = {"kl": kl, "reconstruction": reconstruction}
        require_not_negative(**weights, synthetic=synthetic, invariant=invariant)
        if not 0 <= release <= 1:
            raise UserError(f"release must be from 0 to 1, not {release}")
        if samples < 1 or hidden < 1:
            raise UserError(f"samples={samples} and hidden={hidden} must be at least 1")
        self.loss = loss or TripletSemihardLoss()
        self.kl = kl
        self.reconstruction = reconstruction
        self.synthetic = synthetic
        self.invariant = invariant
        self.release = release
        self.samples = samples
        size, features = self.level_sizes[0], self.level_sizes[-1]
        self.encoder = nn.Linear(features, 2 * size)
        nn.init.zeros_(self.encoder.bias)
        self.decoder = perceptron(size, hidden, features)

    def value(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> Tensor:
        """Return the sum of the four terms."""
        levels = [unit(x) * x.shape[1] ** 0.5 for x in self.levels(embeddings)]
        z, y = levels[0], levels[-1]
        mean, log_variance = apply(self.encoder, y).chunk(2, 1)
        noise = torch.randn(self.samples, *mean.shape, device=mean.device).to(mean.dtype)
        drawn = mean + noise * (log_variance / 2).exp()
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).mean() / 2
        decoded = apply(self.decoder, _passing(z, self.release) + drawn)
        wanted = y.detach() if len(levels) == 1 else y
        missed = (wanted - decoded).square().mean()
        total = self.kl * divergence + self.reconstruction * missed
        if self.synthetic:
            varied = torch.stack([self.loss(z + v, labels) for v in drawn]).mean()
            total = total + self.synthetic * varied
        whole: Tensor = total + self.invariant * self.loss(z, labels)
        return whole


def _passing(x: Tensor, share: float) -> Tensor:
    """Return x, through which only a share of the gradient passes."""
    return torch.lerp(x.detach(), x, share) if share < 1 else x
