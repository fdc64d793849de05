"""A trained network in use: load it, embed images, export it.

- ``network``: the folder of a run -> a callable from images to embeddings
- ``images``, ``files``: images given as paths, PIL images or arrays; folders and files of images
- ``processes``: several processes that embed and measure
- ``export``: ONNX and torch.export
"""

from __future__ import annotations

from zoo.trained.network import Embedded, Trained, load

__all__ = ["Embedded", "Trained", "load"]
