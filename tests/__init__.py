"""The tests; `python -m tests` runs them on every backend that is installed."""
