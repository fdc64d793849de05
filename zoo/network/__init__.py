"""The network: pixels -> preprocessing -> backbone -> pooling -> layers of the embedding.

- ``embedder``: all of it
- ``preprocessor``: the bytes of a data set as a backbone's input
- ``pooling``: a feature map as a vector
- ``heads``: pooled features as an embedding
- ``choices``: the check of an argument that is one of a few words
"""
