"""Prepared data as tokens, and the windows that updates are computed from."""
