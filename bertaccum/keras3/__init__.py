"""Exact gradient accumulation for Keras 3 optimizers and models, on TensorFlow and JAX."""

from bertaccum.keras3.accumulating_model import accumulate_gradients
from bertaccum.keras3.accumulating_optimizer import AccumulatingOptimizer

__all__ = ["AccumulatingOptimizer", "accumulate_gradients"]
