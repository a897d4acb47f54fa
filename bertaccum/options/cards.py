"""GPUs for which `bertaccum plan` calculates times, with the figures that NVIDIA publishes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from bertaccum.errors import ConfigError

_MIB = 2**20
# Bandwidth of PCI Express in one direction in GB/s: the generation, then the number of lanes.
_GEN3_X16 = _GEN4_X8 = 15.8
_GEN4_X16 = _GEN5_X8 = 31.5
_GEN5_X16 = 63.0


@dataclass(frozen=True)
class Card:
    """A GPU.

    Args:
      name: Value of `card`.
      title: Name of the product.
      memory_mib: Memory in MiB, as the driver reports it; error correction takes a part.
      capability: CUDA compute capability.
      float32: Rate of dense float32 products in TFLOP/s, with TF32 where the card has it.
      half: Rate of dense float16 or bfloat16 products with sums in float32, in TFLOP/s.
      bandwidth: Speed of the memory in GB/s.
      bus: Speed of the connection to the host in one direction in GB/s.
      source: Where NVIDIA publishes the figures.
    """

    name: str
    title: str
    memory_mib: int
    capability: tuple[int, int]
    float32: float
    half: float
    bandwidth: float
    bus: float
    source: str

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes."""
        return self.memory_mib * _MIB

    @property
    def precision(self) -> str:
        """The precision that `precision` auto means on this card."""
        return fast_precision(self.capability)


def fast_precision(capability: tuple[int, int]) -> str:
    """Return the half precision in which a GPU of a compute capability is fast, else float32.

    From 8.0 on, all GPUs are fast in bfloat16, which needs no loss scaling; from 7.0 on, in
    float16. The GTX 1050 Ti (6.1) computes in float16 at 1/64 of its speed in float32.
    """
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"


_PASCAL = "product page; CUDA programming guide for float16"
_TURING = "product page; Turing whitepaper"
_AMPERE = "product page; Ampere GA102 whitepaper"
_ADA = "product page; Ada whitepaper"
_BLACKWELL = "product page; RTX Blackwell whitepaper"
_SHEET = "data sheet"
_ORIN = "Jetson Orin data sheet, half precision derived from the rate of int8"

# A GPU without tensor cores computes products of float16 with sums in float32 no faster than
# products of float32. The memory of a Jetson is also that of the host.
_CARDS = (
    Card("gtx-1050-ti", "GTX 1050 Ti", 4096, (6, 1), 2.1, 2.1 / 64, 112, _GEN3_X16, _PASCAL),
    Card("gtx-1060", "GTX 1060 6 GB", 6144, (6, 1), 4.4, 4.4 / 64, 192, _GEN3_X16, _PASCAL),
    Card("gtx-1080-ti", "GTX 1080 Ti", 11264, (6, 1), 11.3, 11.3 / 64, 484, _GEN3_X16, _PASCAL),
    Card("gtx-1650", "GTX 1650", 4096, (7, 5), 3.0, 3.0, 128, _GEN3_X16, _TURING),
    Card("gtx-1660-super", "GTX 1660 Super", 6144, (7, 5), 5.0, 5.0, 336, _GEN3_X16, _TURING),
    Card("rtx-2060", "RTX 2060", 6144, (7, 5), 6.5, 25.8, 336, _GEN3_X16, _TURING),
    Card("rtx-2080-ti", "RTX 2080 Ti", 11264, (7, 5), 13.4, 53.8, 616, _GEN3_X16, _TURING),
    Card("rtx-3050", "RTX 3050", 8192, (8, 6), 9.1, 18.2, 224, _GEN4_X8, _AMPERE),
    Card("rtx-3060", "RTX 3060", 12288, (8, 6), 12.7, 25.5, 360, _GEN4_X16, _AMPERE),
    Card("rtx-3060-8gb", "RTX 3060 8 GB", 8192, (8, 6), 12.7, 25.5, 240, _GEN4_X16, _AMPERE),
    Card("rtx-3070", "RTX 3070", 8192, (8, 6), 20.3, 40.6, 448, _GEN4_X16, _AMPERE),
    Card("rtx-3080", "RTX 3080", 10240, (8, 6), 29.8, 59.5, 760, _GEN4_X16, _AMPERE),
    Card("rtx-3090", "RTX 3090", 24576, (8, 6), 35.6, 71.0, 936, _GEN4_X16, _AMPERE),
    Card("rtx-4060", "RTX 4060", 8192, (8, 9), 15.1, 30.2, 272, _GEN4_X8, _ADA),
    Card("rtx-4060-ti", "RTX 4060 Ti 16 GB", 16384, (8, 9), 22.1, 44.1, 288, _GEN4_X8, _ADA),
    Card("rtx-4070", "RTX 4070", 12288, (8, 9), 29.1, 58.3, 504, _GEN4_X16, _ADA),
    Card("rtx-4080", "RTX 4080", 16384, (8, 9), 48.7, 97.5, 717, _GEN4_X16, _ADA),
    Card("rtx-4090", "RTX 4090", 24576, (8, 9), 82.6, 165.2, 1008, _GEN4_X16, _ADA),
    Card("rtx-5060-ti", "RTX 5060 Ti 16 GB", 16384, (12, 0), 23.7, 47.4, 448, _GEN5_X8, _BLACKWELL),
    Card("rtx-5070", "RTX 5070", 12288, (12, 0), 30.9, 61.7, 672, _GEN5_X16, _BLACKWELL),
    Card("rtx-5080", "RTX 5080", 16384, (12, 0), 56.3, 112.6, 960, _GEN5_X16, _BLACKWELL),
    Card("rtx-5090", "RTX 5090", 32768, (12, 0), 104.8, 209.5, 1792, _GEN5_X16, _BLACKWELL),
    Card("t4", "T4", 15360, (7, 5), 8.1, 65, 320, _GEN3_X16, _SHEET),
    Card("l4", "L4", 23034, (8, 9), 60, 121, 300, _GEN4_X16, _SHEET),
    Card("a10", "A10", 23028, (8, 6), 62.5, 125, 600, _GEN4_X16, _SHEET),
    Card("v100", "V100 SXM2 16 GB", 16384, (7, 0), 15.7, 125, 900, _GEN3_X16, _SHEET),
    Card("a100", "A100 SXM 40 GB", 40960, (8, 0), 156, 312, 1555, _GEN4_X16, _SHEET),
    Card("h100", "H100 SXM", 81559, (9, 0), 494, 989, 3350, _GEN5_X16, _SHEET),
    Card("h200", "H200", 143771, (9, 0), 494, 989, 4800, _GEN5_X16, _SHEET),
    Card("jetson-orin-nano", "Jetson Orin Nano 8 GB", 7620, (8, 7), 1.3, 10, 68, 68, _ORIN),
    Card("jetson-agx-orin", "Jetson AGX Orin 64 GB", 62840, (8, 7), 5.3, 42.5, 204, 204, _ORIN),
)
CARDS = {card.name: card for card in _CARDS}


def check_card(name: str) -> None:
    """Raise ConfigError if no card has this name."""
    if name not in CARDS:
        close = difflib.get_close_matches(name.lower().replace(" ", "-"), CARDS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"`card` {name} is not a known card",
            f"{hint}`bertaccum plan --card list` lists all; for others, set `device_memory`",
        )


def card_with_memory(memory_bytes: int) -> Card:
    """Return the card with the least memory that has this much, else that with the most.

    Of several such cards, it is the first one in the table, which is the slowest.
    """
    by_memory = sorted(CARDS.values(), key=lambda card: card.memory_bytes)
    return next((card for card in by_memory if card.memory_bytes >= memory_bytes), by_memory[-1])
