"""What the tests of all losses share."""

from __future__ import annotations

import pytest

from zoo import registry


@pytest.fixture
def build_loss():
    """Build any loss for embeddings of four numbers and two classes."""
    sizes = {"num_classes": 2, "embedding_size": 4}
    return lambda name, **arguments: registry.assemble("losses", name, arguments, sizes)
