"""Calculates from a card's published rates which part of a micro-step takes the longest."""

from __future__ import annotations

from dataclasses import dataclass

from speed import model_flops
from tools import Results, table

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.presets import PRESET_CONFIGS

EXAMPLES, LENGTH = 8, 128
# Share of the published rates that large matrix products and element-wise kernels reach.
REACHED = 0.5
# Time that the host takes for a node of the graph: on an H200, a micro-step of an earlier version,
# which had 1,889 nodes, took 12 ms.
NODE_SECONDS = 6e-6
# Nodes of a micro-step, in float32 and in half precision, as tests/training/test_nodes.py counts
# them, and of a compiled one.
NODES = {"bert-small": (1363, 1524), "bert-base": (3595, 4036)}
COMPILED_NODES = 46


@dataclass(frozen=True)
class Card:
    """The published rates of a card.

    Args:
      name: Name of the card.
      float32: Rate of float32 products, with TF32 where the card has it, in TFLOP/s.
      half: Rate of float16 or bfloat16 products with float32 sums and without sparsity, in TFLOP/s.
      bandwidth: Speed of the memory in GB/s.
      source: Where NVIDIA publishes the rates.
    """

    name: str
    float32: float
    half: float
    bandwidth: float
    source: str


CARDS = (
    Card(
        *("GTX 1050 Ti", 2.1, 2.1 / 64, 112),
        "product page; CUDA programming guide, arithmetic throughput of compute capability 6.1",
    ),
    Card("T4", 8.1, 65, 320, "data sheet of the T4"),
    Card("RTX 3060", 12.7, 25.5, 360, "product page; Ampere GA102 whitepaper, rates per core"),
    Card("RTX 4090", 82.6, 165.2, 1008, "Ada GPU architecture whitepaper, appendix A"),
)


def moved_bytes(encoder: EncoderConfig, value_bytes: int) -> float:
    """Return the bytes that a micro-step must at least move.

    Weights without embeddings are read in both passes, their gradients are written and read, and
    accumulators are read and written. Activations are written once and read once: for each token
    and layer, 17 vectors of the hidden size, and scores and probabilities of attention.

    Args:
      encoder: Dimensions of the encoder.
      value_bytes: Size of an activation in bytes.
    """
    heads = encoder.num_attention_heads * LENGTH
    of_token = encoder.num_hidden_layers * (17 * encoder.hidden_size + 2 * heads)
    return 6 * 4 * encoder.trained_parameters(None) + 2 * value_bytes * EXAMPLES * LENGTH * of_token


def calculated() -> tuple[Results, str]:
    """Return the milliseconds of arithmetic, memory and host for each card, model and precision."""
    results: Results = []
    for model, nodes in NODES.items():
        encoder = PRESET_CONFIGS[model]
        for card in CARDS:
            for precision, rate, value_bytes, count in (
                ("float32", card.float32, 4, nodes[0]),
                ("half", card.half, 2, nodes[1]),
            ):
                flops = EXAMPLES * model_flops(encoder, LENGTH)
                moved = moved_bytes(encoder, value_bytes)
                milliseconds = {
                    "arithmetic": 1e3 * flops / (REACHED * rate * 1e12),
                    "memory": 1e3 * moved / (REACHED * card.bandwidth * 1e9),
                    "uncompiled": 1e3 * NODE_SECONDS * count,
                    "compiled": 1e3 * NODE_SECONDS * COMPILED_NODES,
                }
                results.append({"model": model, "card": card.name, "precision": precision})
                results[-1] |= milliseconds
    return results, shown(results)


def shown(results: Results) -> str:
    rows = []
    for r in results:
        bounds = []
        for host in ("uncompiled", "compiled"):
            times = {"host": r[host], "arithmetic": r["arithmetic"], "memory": r["memory"]}
            bounds.append(max(times, key=lambda name: times[name]))
        times = [f"{r[name]:.1f}" for name in ("arithmetic", "memory", "uncompiled", "compiled")]
        rows.append([r["model"], r["card"], r["precision"], *times, *bounds])
    heads = ["model", "card", "precision", "arithmetic, ms", "memory, ms", "host, ms"]
    return table([*heads, "host compiled, ms", "bound by", "bound compiled"], rows)
