"""Experiments: assembling, training, evaluating and recording them.

- ``experiment``: a config -> data, network, loss, miner, sampler
- ``embedder``: pixels -> preprocessing -> backbone -> pooling -> linear layer
- ``loop``, ``step``: the training loop; one step
- ``batchnorm``: batch normalisation over several processes
- ``optimizer``, ``device``, ``meter``: parameter groups and schedule; device, precision; mean loss
- ``chosen``: the last checkpoint, or the best on held-out classes
- ``measure``, ``record``, ``summary``: evaluation; ``result.json``; the lines printed at the start
"""
