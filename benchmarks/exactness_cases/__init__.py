"""What `benchmarks/exactness.py` trains, and how each framework is asked to accumulate."""
