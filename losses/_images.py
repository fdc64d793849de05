"""The base class of losses that know which images they are given."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import UserError

from ._shared import Loss


class ImageLoss(Loss):
    """A loss that is told the place of each image in the training data.

    A run passes ``image_ids``, see :class:`zoo.base.LossHooks`; called without them, a loss does
    what it can. The subclass writes :meth:`Loss.value`, in which :attr:`ids` are those of the
    batch.

    Attributes:
        ids: int64 (N,), while the loss is computed; None if they are unknown.
    """

    gallery = False
    mined = False
    ids: Tensor | None = None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, see :meth:`Loss.forward`.

        Args:
            embeddings: (N, d) raw network outputs.
            labels: (N,) integers, any values.
            indices_tuple: the pairs or triplets to use.
            ref_emb: (M, d) gallery.
            ref_labels: (M,) labels of the gallery.
            image_ids: int64 (N,), the place of each image in the training data, from 0.

        Raises:
            UserError: arguments that do not match, such as ids that are not N integers.
        """
        if image_ids is not None:
            check_ids(image_ids, len(embeddings))
            image_ids = image_ids.to(embeddings.device)
        self.ids = image_ids  # PML's forward, which calls value, has no place for them
        try:
            return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        finally:
            self.ids = None


def check_ids(ids: Tensor, images: int) -> None:
    """Refuse ids that are not one integer for each image of the batch.

    Raises:
        UserError: says what they are.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.shape != (images,):
        given = type(ids).__name__
        if isinstance(ids, Tensor):
            given = f"{str(ids.dtype).removeprefix('torch.')} of shape {tuple(ids.shape)}"
        raise UserError(f"image_ids must be int64 of shape ({images},), not {given}")


def require_ids(ids: Tensor | None, num_images: int, name: str) -> Tensor:
    """Return the ids, which a loss with something for each image cannot do without.

    Their values are checked only on a CPU, as reading them would make a GPU wait.

    Raises:
        UserError: they are missing, or not below ``num_images``.
    """
    if ids is None:
        raise UserError(
            f"{name} needs image_ids, the place of each image in the training data; a run gives "
            "them, your own loop passes loss(embeddings, labels, image_ids=...)"
        )
    if ids.device.type == "cpu" and len(ids):
        low, high = map(int, ids.aminmax())
        if low < 0 or high >= num_images:
            raise UserError(
                f"image_ids are from {low} to {high}, but {name} was built for {num_images:,} "
                f"images, 0 to {num_images - 1:,}"
            )
    return ids


def mean_of_copies(rows: Tensor, ids: Tensor) -> Tensor:
    """Return rows (N, d) in which all of one id have their mean, for samplers that repeat one."""
    same = (ids[:, None] == ids).to(rows.dtype)
    return same @ rows / same.sum(1, keepdim=True)
