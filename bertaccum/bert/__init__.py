"""BERT: the encoder, its checkpoint formats and its tokenizer.

The modules that find and describe a model import TensorFlow, which takes seconds, only to read
tensors.
"""
