"""Search of settings: trials by Optuna on held-out classes, then the contest of those that ended.

- ``space``: the settings to search, from text such as ``loss.scale=log:1..100``
- ``search``: what is searched, and the trials that were made so far
- ``trials``: trials become runs; results and intermediate results go back to Optuna
- ``sampling``: a sampler whose suggestion for a trial does not depend on interruptions
"""
