"""The default precision depends on the device."""

from __future__ import annotations

import pytest
import tensorflow as tf

from bertaccum.bert.precision import remedy, resolved_precision


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([], "float32"),
        ([(6, 1)], "float32"),  # GTX 1050 Ti
        ([(7, 0)], "mixed_float16"),  # V100
        ([(7, 5)], "mixed_float16"),  # T4
        ([(8, 0)], "mixed_bfloat16"),  # A100
        ([(12, 0)], "mixed_bfloat16"),
        ([(9, 0), (7, 0)], "mixed_float16"),  # The slowest GPU decides.
        ([(8, 6), (6, 1)], "float32"),
        ([None], "float32"),
        ([(8, 0), None], "float32"),
    ],
)
def test_auto_selects_the_fastest_supported_precision(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[tuple[int, int] | None], expected: str
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: capabilities)
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda gpu: {"compute_capability": gpu} if gpu else {},
    )
    assert resolved_precision("auto") == expected
    assert resolved_precision("float32") == "float32"


@pytest.mark.parametrize(
    ("precision", "advice"),
    [
        ("float32", "lower `learning_rate`"),
        ("mixed_bfloat16", "lower `learning_rate`, or set `precision` to float32"),
        ("mixed_float16", "lower `learning_rate`, or set `precision` to mixed_bfloat16 or float32"),
    ],
)
def test_only_wider_precisions_are_suggested(precision: str, advice: str) -> None:
    assert remedy(precision) == advice
