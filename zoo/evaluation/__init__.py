"""Exact measures of embeddings.

- ``recall``: Recall@K
- ``measures``, ``names``: MAP@R, R-precision, NMI and AMI, and what a config calls them
- ``at_r``, ``clusters``, ``few_images``: the parts of their computation
- ``items``: embeddings and labels: checked, normalised, sorted by class
- ``faiss``: an optional backend of the search
"""
