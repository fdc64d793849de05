"""Backbones and spaces of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.models":
    raise ImportError(f"import zoo.models, not {__name__}")

BUILTIN: dict[str, dict[str, str]] = {
    "backbones": {
        "abe": "zoo.models.abe:AttentionEnsemble",
        "bn_inception": "zoo.models.bn_inception:BNInception",
        "convnet": "zoo.models.convnet:ConvNet",
        "ensemble": "zoo.models.ensemble:Ensemble",
        "sphere_convnet": "zoo.models.sphere_convnet:SphereConvNet",
        "timm.*": "zoo.models.timm_family:TimmBackbone",
        "torchvision.*": "zoo.models.torchvision_family:TorchvisionBackbone",
    },
    "spaces": {
        "euclidean": "zoo.models.euclidean:EuclideanSpace",
        "hyperbolic": "zoo.models.hyperbolic:HyperbolicSpace",
    },
}
