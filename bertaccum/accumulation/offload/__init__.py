"""Optimizer state and sums in host memory."""
