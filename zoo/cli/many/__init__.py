"""Commands that carry out experiments.

- ``run``: one experiment or many; ``tune``: search of settings
- ``outcome``, ``detached``: how such a command ends; such a command in the background
"""
