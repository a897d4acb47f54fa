"""Dimensions of BERT encoders."""

from __future__ import annotations

from dataclasses import dataclass

# As in Google's files, `gelu` means the tanh approximation that BERT was pretrained with.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")


@dataclass(frozen=True)
class EncoderConfig:
    """The dimensions of a BERT encoder, under the names of Google's `bert_config.json`.

    Dropout is not a field, because it belongs to the training recipe and not to the weights.
    """

    hidden_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    initializer_range: float = 0.02

    @property
    def parameters(self) -> int:
        """The number of weights, without biases and layer normalization."""
        return self.trained_parameters(self.num_hidden_layers) + self._embeddings

    def trained_parameters(self, layers: int | None, freeze: bool = True) -> int:
        """Return the number of weights to train, without biases and layer normalization.

        Args:
          freeze: Whether the embeddings are frozen; they are as well if `layers` is a number.
        """
        count = self.num_hidden_layers if layers is None else min(layers, self.num_hidden_layers)
        layer = 4 * self.hidden_size + 2 * self.intermediate_size
        embeddings = 0 if freeze or layers is not None else self._embeddings
        return embeddings + (count * layer + self.hidden_size) * self.hidden_size

    @property
    def _embeddings(self) -> int:
        entries = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        return entries * self.hidden_size
