"""Prices of micro-steps, fitted to a few measured times."""

from __future__ import annotations

import dataclasses

from bertaccum.data.window_cuts import Prices


def fit_prices(
    step_seconds: float, passage_seconds: dict[int, float], usual: Prices
) -> tuple[Prices, float]:
    """Return the prices of micro-steps, and the time of a token in seconds.

    A passage of n tokens takes n a + n**2 b seconds, where a is the time of a token and b that of a
    pair of tokens.

    Args:
      step_seconds: Time of a micro-step without its tokens.
      passage_seconds: Time of a passage, by its length in tokens. With fewer than two lengths, or
        if the times do not fit, a pair of tokens has the usual price.
      usual: Prices that are usual.
    """
    (longest, seconds), *others = sorted(passage_seconds.items(), reverse=True)
    attention = usual.attention
    if others:
        length, other = others[-1]
        per_pair = (seconds / longest - other / length) / (longest - length)
        per_token = seconds / longest - longest * per_pair
        # Times vary, and an error of the price moves to lengths that were not measured.
        if per_token > 0:
            attention = min(max(per_pair / per_token, usual.attention / 4), 4 * usual.attention)
    token_seconds = max(seconds / (longest * (1 + longest * attention)), 1e-12)
    step_tokens = min(max(step_seconds / token_seconds, 1.0), 1e6)
    # With two digits, measuring again hardly changes how windows are cut.
    prices = dataclasses.replace(
        usual, step_tokens=float(f"{step_tokens:.2g}"), attention=float(f"{attention:.2g}")
    )
    return prices, token_seconds
