"""Tests whether a difference between runs is more than chance.

- ``significance``: paired tests and intervals
- ``compare``, ``table``: compare two runs or experiments query by query; show it as a table
- ``standings``: the rows of a table that are not significantly worse than its best
- ``spread``: mean, deviation and interval over seeds
"""
