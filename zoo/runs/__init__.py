"""The folder of a run: what is written, when, and how it is read back.

- ``folder``: :class:`RunFolder`
- ``checkpoint``, ``metrics``, ``queries``: reading its files; they may be damaged
- ``records``: what ``result.json`` and ``validation.json`` must hold
- ``identity``: digests that tie the files of a run together
- ``tracking``: the trackers of a run
- ``plugins``: the plugins that a run was made with
- ``choice``: in words, how a run was chosen on held-out classes
- ``experiments``: one run by its name, or all seeds of an experiment
"""

from __future__ import annotations

from zoo.runs.folder import BusyError, RunFolder

__all__ = ["BusyError", "RunFolder"]
