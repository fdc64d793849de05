"""Experiments: assembling, training, evaluating and recording them.

- ``experiment``: a config -> data, network, loss, miner, sampler
- ``learning``: the part of it that only training needs
- ``loop``, ``step``, ``epochs``: the training loop; one step; what happens between epochs
- ``scheduled``: a loss or a miner whose arguments change
- ``agreement``: an equal state of the loss in all processes
- ``batchnorm``: batch normalisation over several processes
- ``optimizer``, ``device``, ``meter``: parameter groups and schedule; device, precision; mean loss
- ``chosen``: the last checkpoint, or the best on held-out classes
- ``measure``, ``record``, ``summary``: evaluation; ``result.json``; the lines printed at the start
"""
