"""From YAML to a checked config; all problems of a file are reported at once, with their lines.

- ``schema``: the sections of a config, their defaults, which settings exclude each other
- ``loading``: files and overrides -> :class:`Config`
- ``overrides``, ``sweep``: settings of the command line; several experiments in one config
- ``schedules``: arguments of losses and miners that change during training
- ``messages``, ``synonyms``: problems in plain words; other libraries' names of settings
- ``build``: a component from its section of a config
- ``editor``: the JSON schema with which editors complete and check configs
"""

from __future__ import annotations

from zoo.config.loading import Variant, dump, dump_all, load, load_all, shipped
from zoo.config.schema import Config

__all__ = ["Config", "Variant", "dump", "dump_all", "load", "load_all", "shipped"]
