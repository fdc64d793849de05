import pytest
import replicas


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Make a few tiny photographs; return their folder."""
    root = tmp_path_factory.mktemp("photographs")
    return replicas.photographs(root, {"train": 8, "test": 4}, each=4, size=(16, 16))
