"""What runs leave behind, and what is made of it: lists, comparisons, cards, pages.

Loads no TensorFlow.
"""
