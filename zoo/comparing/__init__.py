"""Tests whether a difference between runs is more than chance.

- ``significance``: paired tests and intervals, on numbers
- ``compare``, ``table``: two runs or experiments, query by query; the result in words and a table
- ``standings``: the rows of a table that are as good as its best
- ``spread``: mean, deviation and interval over seeds
"""
