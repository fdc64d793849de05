"""Checks of backbones: what they declare is true, and training can use them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor

from zoo.checks.part import Part, require
from zoo.checks.subject import CheckFailedError, blaming
from zoo.registry import contracts

_SIDE = 96  # pixels; enough for the strides of usual networks
_ODD = 113
_CLOSE = 1e-4


def _build(part: Part, seed: int = 0) -> Any:
    backbone = part.build(weights=seed)
    require(contracts.module(backbone))
    for name in ("preprocess", "feature_dims"):
        if not hasattr(backbone, name):
            require(f"has no {name}, which a backbone needs; see zoo.base.Backbone")
    require(contracts.backbone(backbone))
    return backbone


def _images(backbone: Any, count: int = 2, side: int = _SIDE) -> Tensor:
    planes = 1 if backbone.preprocess.channels == "L" else 3
    return torch.randn(count, planes, side, side, generator=torch.Generator().manual_seed(0))


def _levels(backbone: Any, images: Tensor) -> tuple[Tensor, ...]:
    with blaming(f"it, given images of shape {tuple(images.shape)},"):
        given = backbone(images)
    require(contracts.levels(given, backbone.feature_dims))
    for level in given:
        if len(level) != len(images):
            require(f"gave features of {len(level)} images for {len(images)}")
    return tuple(given)


def check_attributes(part: Part) -> None:
    """``preprocess`` is a zoo.base.Preprocess, and ``feature_dims`` a tuple of whole numbers."""
    _build(part)


def check_levels(part: Part) -> None:
    """It gives a tuple with a feature map for each level, with the declared channels."""
    backbone = _build(part).eval()
    with torch.no_grad():
        _levels(backbone, _images(backbone))


def check_sizes(part: Part) -> None:
    """A single image, several images, and a side that is not a power of two work in evaluation."""
    backbone = _build(part).eval()
    with torch.no_grad():
        for count, side in ((1, _SIDE), (5, _SIDE), (2, _ODD)):
            _levels(backbone, _images(backbone, count, side))


def check_evaluation(part: Part) -> None:
    """In evaluation an image has the same features every time, in whatever batch it is."""
    backbone = _build(part).eval()
    images = _images(backbone, 4)
    with torch.no_grad():
        together, again = _levels(backbone, images), _levels(backbone, images)
        alone = _levels(backbone, images[:1])
    for name, others in (("a second time", again), ("alone in a batch", alone)):
        for one, other in zip(together, others, strict=True):
            difference = float((one[: len(other)] - other).abs().max())
            if not difference <= _CLOSE * (1 + float(one.abs().max())):
                raise CheckFailedError(f"{name} an image has other features", "evaluation")


def check_finite(part: Part) -> None:
    """Features are finite, for images of noise and for images all black or white."""
    backbone = _build(part).eval()
    noise = _images(backbone)
    kinds = {
        "noise": noise,
        "black": torch.full_like(noise, -2),
        "white": torch.full_like(noise, 2),
    }
    with torch.no_grad():
        for what, given in kinds.items():
            for level in _levels(backbone, given):
                if not level.isfinite().all():
                    raise CheckFailedError(f"features of {what} images are not finite", "finite")


def check_gradient(part: Part) -> None:
    """The gradient of its features reaches its parameters; otherwise only the head can learn."""
    backbone = _build(part).train()
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    if not parameters:
        return
    levels = _levels(backbone, _images(backbone, 4))
    with blaming("its backward pass"):
        torch.autograd.backward([level.square().mean() for level in levels])
    reached = [p for p in parameters if p.grad is not None and p.grad.abs().sum() > 0]
    if not reached:
        raise CheckFailedError(
            f"the gradient reaches none of its {len(parameters)} parameters", "gradient"
        )


def check_state_dict(part: Part) -> None:
    """A new one that loads its ``state_dict()`` gives the same features, as a checkpoint needs."""
    backbone, other = _build(part).eval(), _build(part, seed=1).eval()
    with blaming("loading its state_dict()"):
        other.load_state_dict(copy.deepcopy(backbone.state_dict()))
    images = _images(backbone)
    with torch.no_grad():
        wanted, got = _levels(backbone, images), _levels(other, images)
    for one, two in zip(wanted, got, strict=True):
        if not torch.allclose(one, two, rtol=_CLOSE, atol=_CLOSE):
            raise CheckFailedError("with the weights of another it gives other features", "state")


def check_autocast(part: Part) -> None:
    """Under autocast in bfloat16, which training may use, features are finite."""
    backbone = _build(part).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for level in _levels(backbone, _images(backbone)):
            if not level.isfinite().all():
                raise CheckFailedError("under autocast features are not finite", "autocast")


def check_pickle(part: Part) -> None:
    """It can be pickled and copied, as workers and tools do."""
    backbone = _build(part).eval()
    with blaming("pickling it"):
        pickle.dumps(backbone)
    with blaming("copying it"):
        copy.deepcopy(backbone)
