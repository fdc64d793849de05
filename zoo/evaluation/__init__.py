"""Exact measures of embeddings.

- ``recall``: Recall@K
- ``measures``, ``names``: MAP@R, R-precision, NMI and AMI, and what a config calls them
- ``at_r``, ``clusters``, ``few_images``: the parts of their computation
- ``items``, ``shards``: embeddings and labels: checked, normalised, sorted by class; those of
  several processes
- ``faiss``: an optional backend of the search
- ``given``: embeddings of other programs, from files
- ``spaces``: distances of other spaces as cosines
"""
