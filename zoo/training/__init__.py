"""An experiment: assembled, trained, evaluated, recorded.

- ``experiment``: a config -> data, network, loss, miner, sampler
- ``embedder``: pixels -> preprocessing -> backbone -> pooling -> linear layer
- ``loop``, ``step``: the training loop; one step
- ``optimizer``, ``device``, ``meter``: parameter groups and schedule; where it computes; mean loss
- ``chosen``: the last checkpoint, or the best on held-out classes
- ``measure``, ``record``, ``summary``: evaluation; what ``result.json`` says; what is printed first
"""
