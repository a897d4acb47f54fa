"""Calculates what bounds a micro-step on several cards, and compares times with measurements.

All times are those with which `bertaccum plan` plans for a card.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from tools import Results, table

from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.options.cards import CARDS
from bertaccum.planning.calculated_time import FLOAT32, HALF, CalculatedTime, MicroStep, Operations
from bertaccum.planning.measurement import MeasurementRequest

SHOWN = ("gtx-1050-ti", "t4", "rtx-3060", "rtx-4090")
EXAMPLES, LENGTH = 8, 128
# The nodes of the version that was measured on an H200.
EARLIER = {"step": 285, "layer": 401, "recomputed": 360, "rest": 346, "rest_layer": 372}
EARLIER_FLOAT32 = FLOAT32._replace(**EARLIER)
EARLIER_HALF = HALF._replace(
    **EARLIER | {"step": 317, "layer": 436, "recomputed": 385, "weights": 27}
)


class Measured(NamedTuple):
    """A measured update.

    Args:
      name: Name of the measurement.
      value: Milliseconds, or the ratio to the update that is not offloaded.
      steps: Number of micro-steps.
      real: Share of the tokens that are not padding, relative to that of the padded window.
      length: Maximum number of tokens.
      precision: Precision of the model.
      offload: What is offloaded; BERT-Base is then trained with recomputation.
      whole: Whether the optimizer step is included.
    """

    name: str
    value: float
    steps: float = 4.0
    real: float = 1.0
    length: int = 128
    precision: str = "float32"
    offload: str | None = None
    whole: bool = True


# docs/explanation/speed.md and README.md contain these measurements. The shares of real tokens are
# those of benchmarks/speed.py padding.
MEASURED = (
    Measured("float32, forward and backward passes", 48, whole=False),
    Measured("the same, mixed_bfloat16", 75, precision="mixed_bfloat16", whole=False),
    Measured("the same, mixed_float16", 71, precision="mixed_float16", whole=False),
    Measured("float32", 61),
    Measured("float32, second measurement", 32e3 / 623),
    Measured("mixed_bfloat16", 92, precision="mixed_bfloat16"),
    Measured("mixed_bfloat16, second measurement", 32e3 / 367, precision="mixed_bfloat16"),
    Measured("mixed_float16", 91, precision="mixed_float16"),
    Measured("mixed_float16, second measurement", 32e3 / 370, precision="mixed_float16"),
    Measured("reviews of 128 tokens, cut by cost", 32e3 / 617, 4.2, 0.676 / 0.911),
    Measured("reviews of 128 tokens, cut by count", 32e3 / 605, 4, 0.676 / 0.884),
    Measured("reviews padded to 128 tokens", 32e3 / 650),
    Measured("reviews of 256 tokens, cut by cost", 32e3 / 515, 5, 0.439 / 0.895, 256),
    Measured("reviews of 256 tokens, cut by count", 32e3 / 631, 4, 0.439 / 0.821, 256),
    Measured("reviews padded to 256 tokens", 32e3 / 584, length=256),
    Measured("reviews of 512 tokens, cut by cost", 32e3 / 452, 6.2, 0.241 / 0.893, 512),
    Measured("reviews of 512 tokens, cut by count", 32e3 / 580, 4, 0.241 / 0.659, 512),
    Measured("reviews padded to 512 tokens", 32e3 / 484, length=512),
    Measured("offload moments, times as long as without", 3.1, offload="moments"),
    Measured("offload all, times as long as without", 4.1, offload="all"),
)
# Examples/s of NVIDIA's PyTorch BERT-Base with 384 tokens in half precision and in float32. It has
# other operations than bertaccum, so they are compared with compiled steps, for reference only.
PUBLISHED = {
    "rtx-2080-ti": (88, 31),
    "rtx-3070": (80, 30),
    "rtx-3090": (172, 85),
    "v100": (190, 43),
    "a100": (444, 240),
    "h100": (813, 408),
}


def calculated() -> tuple[Results, str]:
    """Return the milliseconds of a micro-step for each card, model and precision."""
    results: Results = []
    for model in ("bert-small", "bert-base"):
        for name in SHOWN:
            card = CARDS[name]
            for precision in dict.fromkeys(("float32", card.precision)):
                own = {"model": model, "card": card.title, "precision": precision}
                time = CalculatedTime(card, PRESET_CONFIGS[model], precision)
                for compiled in (False, True):
                    step = time.micro_step(EXAMPLES, LENGTH, _request(compiled=compiled))
                    results.append(own | {"compiled": compiled} | _milliseconds(step))
    rows = [
        [
            *(r["model"], r["card"], r["precision"], "yes" if r["compiled"] else "no"),
            *(f"{r[name]:.1f}" for name in ("products", "moving", "host", "micro-step")),
        ]
        for r in results
    ]
    head = ["model", "card", "precision", "compiled", "products, ms", "other operations, ms"]
    return results, table([*head, "host, ms", "micro-step, ms"], rows)


def _milliseconds(step: MicroStep) -> dict[str, float]:
    return {name: 1e3 * s for name, s in (step._asdict() | {"micro-step": step.seconds}).items()}


def errors() -> tuple[Results, str]:
    """Return measurements on an H200, and published ones, with the calculated times."""
    results: Results = [_compared(one) for one in MEASURED]
    rows = [
        [r["name"], f"{r['measured']:.3g}", f"{r['calculated']:.3g}", f"{r['error']:+.0%}"]
        for r in results
    ]
    own = table(["update on an H200", "measured, ms", "calculated, ms", "error"], rows)
    published = [_published(card, half) for card in PUBLISHED for half in (True, False)]
    rows = [
        [r["card"], r["precision"], f"{r['published']}", f"{r['calculated']:.0f}",
         f"{r['error']:+.0%}"]
        for r in published
    ]  # fmt: skip
    head = ["card", "precision", "published, examples/s", "calculated, examples/s", "error"]
    return results + published, f"{own}\n\n{table(head, rows)}"


def _compared(one: Measured) -> dict[str, float | str]:
    counted = EARLIER_FLOAT32 if one.precision == "float32" else EARLIER_HALF
    if one.offload is None:
        found = 1e3 * _update("bert-small", one, counted, _request())
    else:
        plain, offloaded = (
            _update("bert-base", one, counted, _request("layer", offload))
            for offload in ("none", one.offload)
        )
        found = offloaded / plain
    return {"name": one.name, "measured": one.value, "calculated": found,
            "error": found / one.value - 1}  # fmt: skip


def _update(model: str, one: Measured, counted: Operations, request: MeasurementRequest) -> float:
    """Return the time of 32 examples in equal micro-batches."""
    time = CalculatedTime(CARDS["h200"], PRESET_CONFIGS[model], one.precision, counted=counted)
    step = time.micro_step(32 / one.steps, one.length * one.real, request).seconds
    return one.steps * step + one.whole * time.optimizer_step(request)


def _published(name: str, half: bool) -> dict[str, float | str]:
    card, rate = CARDS[name], PUBLISHED[name][not half]
    precision = card.precision if half else "float32"
    time = CalculatedTime(card, PRESET_CONFIGS["bert-base"], precision)
    request = dataclasses.replace(_request(compiled=True), padded=[(32, 384)])
    found = 32 / time.update_seconds(request)
    return {"card": card.title, "precision": precision, "published": rate, "calculated": found,
            "error": found / rate - 1}  # fmt: skip


def _request(
    recompute: str = "none", offload: str = "none", compiled: bool = False
) -> MeasurementRequest:
    return MeasurementRequest([], recompute, offload, padded=[] if compiled else None)
