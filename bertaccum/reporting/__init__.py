"""Records of runs, and the lists, comparisons, model cards and pages made from them.

This package does not import TensorFlow.
"""
