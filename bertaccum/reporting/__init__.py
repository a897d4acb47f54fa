"""Records of runs, and the lists, comparisons, model cards and report pages made from them.

This package does not import TensorFlow.
"""
