"""The hyperbolic space: a ball in which distances grow towards its edge."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import UserError

from ._space import safe_sqrt, squared_distances


class HyperbolicSpace:
    """Compare embeddings in the Poincare ball of curvature -c, whose room grows exponentially.

    An embedding u is a tangent vector at the origin, shortened to length r (``clip``); its point is
    where the exponential map leads::

        x = tanh(sqrt(c) |u|) u / (sqrt(c) |u|)

        d(x, y) = arcosh(1 + 2 c |x - y|^2 / ((1 - c |x|^2) (1 - c |y|^2))) / sqrt(c)

    For a small c it is twice the Euclidean distance. Search uses the hyperboloid: with
    X = (1 + c |x|^2, 2 sqrt(c) x) / (1 - c |x|^2), the product -X_0 (Y_0 - 1) + X_1 . Y_1 of a
    query and an item is X_0 - cosh(sqrt(c) d).

    Whatever ``clip`` is, embeddings are not longer than 6 / sqrt(c): beyond, float32 cannot tell a
    point from the edge, from where all distances are infinite.

    Args:
        curvature: c, from 1e-6 to 1e6; 0.1 in the paper. For a small one the space is nearly
            Euclidean.
        clip: r, the largest length of an embedding, at least 1e-6; 2.3 in the paper. None: no limit
            but that of float32.

    Raises:
        UserError: curvature or clip are out of their range.

    Reference:
        Ermolov, Mirvakhabova, Khrulkov, Sebe, Oseledets. Hyperbolic Vision Transformers: Combining
        Improvements in Metric Learning. CVPR 2022, arXiv:2203.10833, section 3.1 (distance and
        map), 3.4 (clipping) and 4.2 (values); Nickel, Kiela. Learning Continuous Hierarchies in the
        Lorentz Model of Hyperbolic Geometry. ICML 2018, arXiv:1806.03417 (hyperboloid).
    """

    paper: ClassVar[str] = (
        "Ermolov et al. 2022, Hyperbolic Vision Transformers: Combining Improvements in Metric "
        "Learning"
    )

    def __init__(self, curvature: float = 0.1, clip: float | None = 2.3) -> None:
        for name, value in {"curvature": curvature, "clip": clip}.items():
            if value is not None and not _LEAST <= value <= 1 / _LEAST:
                raise UserError(f"{name} must be from {_LEAST:g} to {1 / _LEAST:g}, not {value}")
        self.curvature, self.clip = float(curvature), clip
        self._root = math.sqrt(curvature)
        self._longest = min(math.inf if clip is None else clip, _FARTHEST / self._root)

    def points(self, embeddings: Tensor) -> Tensor:
        """Return points (N, d) of the ball of radius 1 / sqrt(c)."""
        length = safe_sqrt(embeddings.square().sum(1, keepdim=True))
        short = embeddings * (self._longest / length.clamp_min(self._longest))
        length = length.clamp_max(self._longest) * self._root
        # tanh(z) / z, which is 1 at 0
        near = length < _SMALL
        safe = torch.where(near, 1, length)
        return short * torch.where(near, 1 - length.square() / 3, safe.tanh() / safe)

    def distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distances (N, M); their gradient is 0 where points are equal."""
        squared = squared_distances(a, b)
        t = 2 * self.curvature * squared / (self._room(a) * self._room(b).T)
        return self._distance(t)

    def query_vectors(self, points: Tensor) -> Tensor:
        """Return (-X_0, X_1), (N, d + 1)."""
        beyond, other = self._hyperboloid(points)
        return torch.cat([-1 - beyond, other], 1)

    def gallery_vectors(self, points: Tensor) -> Tensor:
        """Return (Y_0 - 1, Y_1), (M, d + 1)."""
        return torch.cat(self._hyperboloid(points), 1)

    def distances_of(self, products: Tensor, queries: Tensor) -> Tensor:
        """Return the distances (N, M) of inner products (N, M), X_0 - cosh(sqrt(c) d)."""
        t = (self._hyperboloid(queries)[0] - products).clamp_min(0)
        return self._distance(t)

    def _distance(self, t: Tensor) -> Tensor:
        """Return arcosh(1 + t) / sqrt(c), which keeps the digits of a small t."""
        return torch.log1p(t + safe_sqrt(t * (t + 2))) / self._root

    def _room(self, points: Tensor) -> Tensor:
        return 1 - self.curvature * points.square().sum(1, keepdim=True)

    def _hyperboloid(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return X_0 - 1 (N, 1), which may be tiny, and X_1 (N, d)."""
        room = self._room(points)
        squares = points.square().sum(1, keepdim=True)
        return 2 * self.curvature * squares / room, 2 * self._root * points / room


_FARTHEST = 6.0  # of sqrt(c) |u|; 1 - tanh is then 1e-5, and at 9 it is 0 in float32
_SMALL = 1e-4
_LEAST = 1e-6  # of curvature and clip
