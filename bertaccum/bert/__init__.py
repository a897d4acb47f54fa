"""BERT itself: presets, classifier, Google's checkpoints, vocabulary and tokens."""
