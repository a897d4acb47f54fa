"""Records of runs, and what is made of them: lists, comparisons, model cards, pages.

Loads no TensorFlow.
"""
