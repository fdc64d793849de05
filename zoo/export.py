"""A trained network as ONNX or torch.export: the entrance to :mod:`zoo.trained.export`."""

from __future__ import annotations

from zoo.trained.export import FORMATS, Difference, Exported, ExportError, export, snippet

__all__ = ["FORMATS", "Difference", "ExportError", "Exported", "export", "snippet"]
