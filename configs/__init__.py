"""The experiments that ship with the zoo, one YAML file each."""

from __future__ import annotations

if __name__ != "zoo.configs":
    raise ImportError(f"import zoo.configs, not {__name__}")
