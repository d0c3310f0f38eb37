"""Figures: what this package costs beside bare `fit` and Keras's own callbacks.

`python -m tests.benchmarks` prints one table. Everything is a ratio between things timed in
turn in one process; absolute times say more about the machine.
"""
