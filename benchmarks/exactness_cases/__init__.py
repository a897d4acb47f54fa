"""The trainings of `benchmarks/exactness.py`, and how each framework accumulates in them."""
