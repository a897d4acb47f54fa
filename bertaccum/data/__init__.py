"""Tokenized data, and the windows of examples from which updates are computed."""
