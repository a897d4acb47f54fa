"""BERT: the encoder, its checkpoint formats and its tokenizer."""
