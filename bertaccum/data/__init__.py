"""Tokenized data, and the windows of examples that updates are computed from."""
