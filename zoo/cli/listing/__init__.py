"""``zoo list`` and ``zoo show``: what components there are.

- ``commands``: both commands
- ``losses``: the table of losses, grouped by what they look at
- ``tables``: what the tables of this package share
"""
