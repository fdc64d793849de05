"""The checks of losses: each is a function whose name begins with ``check_``.

- ``numbers``: value and gradient, precision, hard cases
- ``symmetry``: what must not change the value
- ``rows``: parts that several processes compute
- ``use``: miners, galleries, training, saving, speed
"""
