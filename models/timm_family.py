"""Every network of timm, without its classifier; timm is optional, and imported when used."""

from __future__ import annotations

import importlib
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from zoo.base import Preprocess
from zoo.errors import UserError, did_you_mean

from ._weights import is_pretrained, load_matching, located, read_state

_Tokens = Literal["class", "map"]
# What follows the tokens of a transformer, and is not there if they are taken themselves.
_AFTER_TOKENS = ("head", "head_drop", "attn_pool", "head_dist")


class TimmBackbone(nn.Module):
    """A network of timm up to its last feature map: (N, 3, H, W) to one of (N, C, H', W').

    The map is that of timm's ``forward_features``, with the channels moved to the second dimension
    if they are last. The children that only ``forward_head`` calls are removed: the pooling, which
    the config sets, and what follows it. Networks that return tokens or several maps have no single
    map: they give (N, C), pooled as before their classifier (class token, mean or attention), or
    what ``tokens`` asks for.

    The parameters keep timm's names, after the prefix ``network.``.

    Args:
        variant: a name of ``variants()``: ``"resnet50"``, with timm's default weights; or
            ``"resnet50.a1_in1k"`` with those of the tag.
        weights: ``None`` for random values; ``"pretrained"`` or ``"imagenet"`` for timm's weights
            of the variant, whatever they were trained on, downloaded into the folder of
            huggingface_hub; ``"hf:owner/name"`` for those of a repository there; or a file with
            timm's names, of safetensors or torch, whose classifier is ignored and optional.
        image_size: the side of the images, where it is not the one that the weights were trained
            with: position embeddings are interpolated, as timm does it.
        tokens: of a vision transformer: ``"class"`` for the class token; ``"map"`` for the tokens
            of the patches as a feature map, which ``model.pooling`` of a config pools.

    Attributes:
        feature_dims: (C,).
        preprocess: that of timm's weights of the variant.

    Raises:
        UserError: timm is not installed; the variant is unknown; weights cannot be loaded or do not
            fully match; the variant does not take images of that size, or has no such tokens.

    Source: https://huggingface.co/docs/timm
    """

    def __init__(
        self,
        variant: str,
        weights: str | None = None,
        image_size: int | None = None,
        tokens: _Tokens | None = None,
    ) -> None:
        super().__init__()
        if tokens is not None and tokens not in get_args(_Tokens):
            raise UserError(f"tokens must be class or map, not {tokens!r}")
        if variant not in self.variants():
            hint = did_you_mean(str(variant), self.variants())
            raise UserError(f"timm has no model {variant!r}{hint}")
        layout = _layout(variant)
        self.network = _build(variant, pretrained=is_pretrained(weights))
        config: dict[str, Any] = self.network.pretrained_cfg
        self.feature_dims = (layout.width,)
        self.preprocess = Preprocess(mean=tuple(config["mean"]), std=tuple(config["std"]))
        self._variant = variant
        self._is_map = layout.is_map
        self._channels_last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        self._one_size = bool(config.get("fixed_input_size"))
        least = config.get("min_input_size") or (3, 1, 1)
        self._smallest = tuple((config["input_size"] if self._one_size else least)[1:])
        self._tokens = tokens
        if tokens is None:
            ignore = _without_head(self.network, layout)
        else:
            _check_tokens(self.network, layout, variant, tokens)
            # Those that average the tokens normalise the mean instead, by a layer of another name.
            whole = isinstance(getattr(self.network, "norm", None), nn.Identity)
            ignore = _without_rest(self.network, () if whole else ("fc_norm",))
        if weights is not None and not is_pretrained(weights):
            path = located(weights)
            load_matching(self.network, read_state(path), path, ignore=ignore)
        if image_size is not None:
            self._resize(image_size)

    @classmethod
    def variants(cls) -> list[str]:
        """Return the names of timm's models, without and with the tags of their weights, sorted."""
        timm = _timm()
        return sorted({*timm.list_models(), *timm.list_models(pretrained=True)})

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return the feature map of images (N, 3, H, W), in a tuple."""
        self.check_size(tuple(images.shape[-2:]))
        features = self.network.forward_features(images)
        if self._tokens is not None:
            return (self._of_tokens(features, images),)
        if not self._is_map:
            return (self.network.forward_head(features, pre_logits=True),)
        return (features.permute(0, 3, 1, 2) if self._channels_last else features,)

    def _of_tokens(self, features: Tensor, images: Tensor) -> Tensor:
        """Return the class token (N, C), or the tokens of the patches as a map (N, C, H', W')."""
        if isinstance(self.network.norm, nn.Identity):
            features = self.network.fc_norm(features)
        if self._tokens == "class":
            return features[:, 0]
        rows, columns = (
            side // patch
            for side, patch in zip(
                images.shape[-2:], self.network.patch_embed.patch_size, strict=True
            )
        )
        patches = features[:, self.network.num_prefix_tokens :]
        return patches.transpose(1, 2).reshape(len(images), -1, rows, columns)

    def _resize(self, side: int) -> None:
        """Let the network take images of another side."""
        if side < 1:
            raise UserError(f"image_size must be 1 or more, not {side}")
        if not self._one_size:
            raise UserError(f"timm.{self._variant} takes images of any size; leave image_size out")
        if not hasattr(self.network, "set_input_size"):
            raise UserError(
                f"timm.{self._variant} takes images of "
                f"{'x'.join(map(str, self._smallest))} only; leave image_size out"
            )
        patch = getattr(getattr(self.network, "patch_embed", None), "patch_size", (1, 1))[0]
        if side % patch:
            raise UserError(
                f"image_size is {side}, which is not a multiple of the {patch} pixels of a patch "
                f"of timm.{self._variant}"
            )
        try:
            self.network.set_input_size(img_size=(side, side))
        except (AssertionError, ValueError, RuntimeError) as error:
            reason = str(error) or "its patches or windows do not fit"
            raise UserError(
                f"timm.{self._variant} cannot take images of {side}x{side}: {reason}"
            ) from error
        self._smallest = (side, side)

    def check_size(self, size: tuple[int, ...]) -> None:
        """Refuse images of a size (rows, columns) that the network cannot take.

        Raises:
            UserError: it says which sizes it takes.
        """
        fits = [
            a == b if self._one_size else a >= b for a, b in zip(size, self._smallest, strict=True)
        ]
        if not all(fits):
            wanted = "x".join(map(str, self._smallest))
            change = "images.crop or images.resize"
            if self._one_size and hasattr(self.network, "set_input_size"):
                change += ", or set model.backbone.image_size"
            raise UserError(
                f"timm.{self._variant} takes images of {wanted}"
                f"{'' if self._one_size else ' and larger'}, not {'x'.join(map(str, size))}; "
                f"change {change}"
            )


class _Layout(NamedTuple):
    """What a network outputs, and its children that do not contribute to it."""

    is_map: bool
    width: int
    removed: list[str]


def _timm() -> Any:
    """Import timm by name, as type checkers may not find it."""
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the backbones timm.* need a package that is not installed: {error.name}; "
            "pip install 'metric-zoo[timm]'"
        ) from None


def _build(variant: str, pretrained: bool) -> Any:
    """Return the whole network: without its classifier, timm would not check all weights."""
    timm = _timm()
    if not pretrained:
        return timm.create_model(variant)
    if not timm.is_model_pretrained(variant):
        raise UserError(f"timm has no weights for {variant!r}; leave weights out, or name a file")
    try:
        return timm.create_model(variant, pretrained=True)
    except Exception as error:  # noqa: BLE001 - of the hub, of its transport, of the file
        config = timm.get_pretrained_cfg(variant)
        address = f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else config.url
        raise UserError(
            f"timm.{variant}: weights could not be downloaded: {type(error).__name__}: {error}\n"
            f"  get       {address}\n"
            "  and name the file (model.safetensors) in weights"
        ) from None


def _layout(variant: str) -> _Layout:
    """Run the network without memory or arithmetic, to see what it outputs."""
    with torch.device("meta"), torch.no_grad():
        network = _timm().create_model(variant).eval()
        channels, rows, columns = network.pretrained_cfg["input_size"]
        features = network.forward_features(torch.empty(1, channels, rows, columns))
        if not isinstance(features, Tensor) or features.ndim != 4:
            network.reset_classifier(0)
            return _Layout(False, network.forward_head(features, pre_logits=True).shape[1], [])
        called: list[str] = []
        for name, child in network.named_children():
            child.register_forward_pre_hook(lambda *_, name=name: called.append(name))
        network.forward_head(features)
    return _Layout(True, network.num_features, called)


def _without_head(network: Any, layout: _Layout) -> list[str]:
    """Remove the children that do not contribute; return the prefixes of their tensors' names."""
    if layout.is_map:
        for name in layout.removed:
            setattr(network, name, nn.Identity())
        return [f"{name}." for name in layout.removed]
    network.reset_classifier(0)
    names = network.pretrained_cfg.get("classifier") or ()
    return [f"{name}." for name in ([names] if isinstance(names, str) else names)]


def _check_tokens(network: Any, layout: _Layout, variant: str, tokens: _Tokens) -> None:
    """Refuse a network that has no tokens of that kind."""
    prefix = getattr(network, "num_prefix_tokens", None)
    if layout.is_map or prefix is None or not hasattr(network, "patch_embed"):
        raise UserError(f"timm.{variant} is no vision transformer with tokens; leave tokens out")
    if tokens == "class" and not (prefix and getattr(network, "cls_token", None) is not None):
        raise UserError(f"timm.{variant} has no class token; set tokens=map, or leave it out")


def _without_rest(network: Any, more: tuple[str, ...]) -> list[str]:
    """Remove what follows the tokens; return the prefixes of its tensors' names."""
    removed = (*_AFTER_TOKENS, *more)
    for name in removed:
        if isinstance(getattr(network, name, None), nn.Module):
            setattr(network, name, nn.Identity())
    return [f"{name}." for name in removed]
