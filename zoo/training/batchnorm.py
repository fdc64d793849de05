"""Batch normalisation whose statistics are those of the whole batch of several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import UserError
from zoo.parallel.ranks import Ranks


def synchronise(network: nn.Module, ranks: Ranks, device: torch.device, allowed: bool) -> None:
    """Replace each layer of batch normalisation that is trained, in place.

    On a GPU it becomes torch's, which has no other devices; on a CPU it is :class:`Synchronised`.

    Raises:
        UserError: there are such layers, and this is not allowed, or one does more than its kind:
            timm's has an activation, which would be lost.
    """
    for name, layer in list(network.train().named_modules()):
        if isinstance(layer, _BatchNorm) and layer.training:
            if not allowed:
                raise UserError(
                    "train.processes: batch normalisation would see a part of each batch; set "
                    "train.sync_batchnorm=true, or model.freeze=batchnorm"
                )
            if type(layer).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise UserError(
                    f"train.processes: {name} is a {type(layer).__name__}, which does more than "
                    "normalise a batch and cannot be synchronised; set model.freeze=batchnorm"
                )
            parent, _, last = name.rpartition(".")
            new = _on_gpu(layer, ranks) if device.type == "cuda" else Synchronised(layer, ranks)
            setattr(network.get_submodule(parent), last, new)


def _on_gpu(layer: _BatchNorm, ranks: Ranks) -> nn.Module:
    convert: Callable[..., nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
    return convert(layer, ranks.group)


class Synchronised(_BatchNorm):
    """The same layer, with the mean and variance over the images of all processes.

    In training it returns ``(x - mean) / sqrt(var + eps) * weight + bias``, and keeps running
    statistics with the unbiased variance, as torch's layers do. Weights and buffers are those of
    the layer that it replaces, with the same names.
    """

    def __init__(self, layer: _BatchNorm, ranks: Ranks) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine)
        self.track_running_stats = layer.track_running_stats
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.ranks = ranks
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images (N, C, ...)."""
        if not self.training:
            normal: Tensor = super().forward(x)
            return normal
        dims = [i for i in range(x.ndim) if i != 1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = torch.cat([wide.sum(dims), wide.new_tensor([x.numel() / x.shape[1]])])
        total, count = torch.split(self._total(sums), [x.shape[1], 1])
        shape = [1, -1, *[1] * (x.ndim - 2)]
        mean = total / count
        centred = wide - mean.view(shape)
        variance = self._total(centred.square().sum(dims)) / count
        self._keep(mean.detach(), variance.detach() * (count / (count - 1).clamp_min(1)).detach())
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        normal = centred * scale.view(shape)
        return (normal + self.bias.view(shape) if self.affine else normal).to(x.dtype)

    def _total(self, sums: Tensor) -> Tensor:
        total: Tensor = _Total.apply(sums, self.ranks)
        return total

    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        step = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), step)
        self.running_var.lerp_(variance.to(self.running_var.dtype), step)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept what the layer that it replaces was made for."""


class _Total(torch.autograd.Function):
    """The sum over processes, each of which uses it: so are the gradients that come back."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        total = mine.clone()
        ranks.sum([total])
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        ctx.ranks.sum([total])
        return total, None
