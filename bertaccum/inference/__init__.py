"""What a trained classifier is used for: prediction, evaluation, export."""
