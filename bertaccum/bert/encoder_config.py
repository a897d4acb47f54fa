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
        entries = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        layer = 4 * self.hidden_size + 2 * self.intermediate_size
        return (entries + self.num_hidden_layers * layer + self.hidden_size) * self.hidden_size


# Names of the weights file in Hugging Face's format, and of the older one in PyTorch's.
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
