"""Exact measures of embeddings.

- ``recall``: Recall@K
- ``measures``, ``names``: MAP@R, R-precision, NMI and AMI, and what a config calls them
- ``at_r``, ``clusters``, ``few_images``: what these are computed from
- ``items``: the embeddings that are searched: checked, normalised, sorted by class
- ``faiss``: an optional backend of the search
"""
