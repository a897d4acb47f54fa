"""The device of a PyTorch peer: the first GPU, or the CPU."""

from __future__ import annotations

import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if ON_GPU:
    torch.set_float32_matmul_precision("high")  # TF32, which TensorFlow and JAX use by default


def settle() -> int | None:
    """Wait for the GPU, and return its peak memory in bytes; None on a CPU."""
    if not ON_GPU:
        return None
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def length_multiple(precision: str) -> int:
    """Return the number of which the lengths of batches should be multiples, for speed."""
    return 1 if precision == "float32" else 8


def inputs(rows: list[torch.Tensor], multiple: int = 1) -> dict[str, torch.Tensor]:
    """Return a batch of token IDs on the CPU, padded with zeros, with its attention mask.

    Args:
      rows: Token IDs of each review, [length] int64.
      multiple: The length of the batch is a multiple of this number.
    """
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # [rows, length]
    ids = torch.nn.functional.pad(ids, (0, -ids.shape[1] % multiple))
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}
