"""A trained network in use.

- ``network``: the folder of a run -> a callable from images to embeddings
- ``images``, ``files``: images as a caller gives them; folders and files of images
- ``export``: ONNX and torch.export
"""

from __future__ import annotations

from zoo.trained.network import Embedded, Trained, load

__all__ = ["Embedded", "Trained", "load"]
