"""What holds for all tests."""

from __future__ import annotations

import os

# Workers that stand beside each other share the cores: with threads of their own each, they would
# wait for one another. Set before torch is imported, so that commands that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
