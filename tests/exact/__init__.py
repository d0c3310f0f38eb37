"""Exactness, shown against an independent calculation over single examples.

* `arithmetic.py`: losses, reductions and metrics in NumPy, float64.
* `situation.py`: what a situation is: a model, its data and its right values.
* `reductions.py`, `measures.py`, `structures.py`, `overrides.py`, `whole_batch.py`: the situations.
* `forms.py`: the same examples as arrays, `tf.data`, `PyDataset`, ...
* `table.py`: the pairwise table of cases that the tests run.
* `case.py`: one case: what `kt.evaluate` says beside the right value.
* `python -m tests.exact`: every combination instead of the pairwise table.
"""
