"""Every classification network of torchvision, without its classifier."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchvision import models

from zoo.base import Preprocess
from zoo.errors import UserError, did_you_mean

from ._weights import download, is_pretrained, load_matching, located, read_state


class TorchvisionBackbone(nn.Module):
    """A torchvision network up to its last feature map: (N, 3, H, W) to one of (N, C, H', W').

    Only the vision transformers (``vit_*``) give (N, C), the class token: they have no map. The
    global pooling, which the config sets, and what follows it are removed. The parameters keep
    torchvision's names, after the prefix ``network.``.

    Args:
        variant: a name of ``variants()``: ``"resnet50"``.
        weights: ``None`` for random values; ``"pretrained"`` or ``"imagenet"`` for torchvision's
            default ones; ``"hf:owner/name"`` for those of a repository of Hugging Face; or a file
            with torchvision's names, of torch or safetensors, whose classifier is ignored and
            optional.

    Attributes:
        feature_dims: (C,).
        preprocess: that of torchvision's default weights of the variant.

    Raises:
        UserError: the variant is unknown; weights cannot be loaded or do not fully match.

    Source: https://docs.pytorch.org/vision/stable/models.html
    """

    def __init__(self, variant: str, weights: str | None = None) -> None:
        super().__init__()
        if variant not in self.variants():
            hint = did_you_mean(str(variant), self.variants())
            raise UserError(f"torchvision has no classification model {variant!r}{hint}")
        default: Any = models.get_model_weights(variant).DEFAULT
        network = _build(variant, default)
        removed, width = _split(network)
        self.network = _trunk(network, removed)
        self.feature_dims = (width,)
        self.preprocess = _preprocess(network, default)
        self._variant = variant
        # Swin's minimum is only a recommendation: it pads images that its windows do not fit.
        swin = isinstance(network, models.SwinTransformer)
        self._smallest: tuple[int, int] = (32, 32) if swin else default.meta["min_size"]
        # Position embeddings are made for one size.
        self._one_size = isinstance(network, models.VisionTransformer | models.MaxVit)
        if weights is not None:
            path = download(default.url) if is_pretrained(weights) else located(weights)
            # The files have auxiliary heads, which are never built.
            ignore = [f"{name}." for name in (*removed, "aux1", "aux2", "AuxLogits")]
            load_matching(self.network, read_state(path), path, ignore=ignore, rename=_modern)

    @classmethod
    def variants(cls) -> list[str]:
        """Return the names of torchvision's classification models, sorted."""
        return cast(list[str], models.list_models(module=models))

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return the feature map of images (N, 3, H, W), in a tuple."""
        self.check_size(tuple(images.shape[-2:]))
        return (self.network(images),)

    def check_size(self, size: tuple[int, ...]) -> None:
        """Refuse images of a size (rows, columns) that the network cannot take.

        Raises:
            UserError: it says which sizes it takes.
        """
        if size != self._smallest if self._one_size else min(size) < self._smallest[0]:
            wanted = "x".join(map(str, self._smallest))
            raise UserError(
                f"torchvision.{self._variant} takes images of {wanted}"
                f"{'' if self._one_size else ' and larger'}, not {size[0]}x{size[1]}; "
                "change images.crop or images.resize"
            )


def _build(variant: str, default: Any) -> nn.Module:
    """Return the whole network with random weights, except large classifiers, which are dropped."""
    builder = models.get_model_builder(variant)
    options: dict[str, Any] = {"num_classes": 1}
    if variant.startswith("vit_"):
        options["image_size"] = default.meta["min_size"][0]
    if variant in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    with _WideLayersOnMeta():
        return cast(nn.Module, builder(weights=None, **options))


class _WideLayersOnMeta(TorchFunctionMode):
    """Allocate no memory for matrices of 2^24 values and more.

    Those are the classifiers of VGG and AlexNet, half a gigabyte and seconds of random numbers that
    would be dropped. No layer that is kept is so large (a test builds every variant).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and isinstance(args[0], tuple) and len(args[0]) == 2:
            rows, columns = args[0]
            if rows * columns >= 2**24:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _split(network: nn.Module) -> tuple[list[str], int]:
    """Return the names of the children from the global pooling on, and the width of their input.

    In every network of torchvision the last child is the classifier; some pool in a separate child
    before it, some inside it, some in ``forward``.
    """
    names = [name for name, _ in network.named_children()]
    start = names.index("avgpool") if "avgpool" in names else len(names) - 1
    cells = 1
    if isinstance(network, models.VGG | models.AlexNet):  # they flatten the pooled map: 7x7, 6x6
        pool = cast(nn.AdaptiveAvgPool2d, network.avgpool)
        rows, columns = cast(tuple[int, int], pool.output_size)
        cells = rows * columns
    first = next(network.get_submodule(names[-1]).parameters())
    # (out, in, ...) of a linear layer or a 1x1 convolution; (in,) of a normalisation.
    return names[start:], first.shape[:2][-1] // cells


def _trunk(network: nn.Module, removed: list[str]) -> nn.Module:
    """Return ``network`` without some of its children; the others run in their order."""
    if hasattr(network, "class_token"):  # not a chain: the token is added after the first layer
        network.heads = nn.Sequential()
        return network
    kept = OrderedDict(network.named_children())
    for name in removed:
        del kept[name]
    for name, child in kept.items():
        if isinstance(child, nn.ModuleList):
            kept[name] = nn.Sequential(*child)
    if isinstance(network, models.DenseNet):
        kept["relu"] = nn.ReLU(inplace=True)  # applied in its forward()
    return nn.Sequential(kept)


def _preprocess(network: nn.Module, default: Any) -> Preprocess:
    if isinstance(network, models.GoogLeNet | models.Inception3):
        # Their weights need this; ``transform_input`` would undo ImageNet's mean to get it.
        return Preprocess(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    preset = default.transforms()
    return Preprocess(mean=tuple(preset.mean), std=tuple(preset.std))


def _modern(name: str) -> str:
    """Return the current name of a layer in old files of DenseNet: ``norm.1`` became ``norm1``."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", name)
