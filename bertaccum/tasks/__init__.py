"""What the model is trained for: head, loss, metrics and decoding, one file a kind of task."""
