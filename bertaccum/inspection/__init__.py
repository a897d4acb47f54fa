"""Inspection of an installation, for `bertaccum doctor`; it works without TensorFlow."""
