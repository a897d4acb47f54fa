"""Prediction, evaluation and export with a trained classifier."""
