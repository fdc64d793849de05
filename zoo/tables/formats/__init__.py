"""A table in each format.

- ``terminal``, ``markdown``, ``latex``, ``html``, ``csv``, ``json``: one format each
- ``narrow``: breaks cells into lines, so that a table fits a terminal
- ``escape``: any text as LaTeX
"""
