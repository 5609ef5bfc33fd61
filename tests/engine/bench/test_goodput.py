from __future__ import annotations

from engine.bench.goodput import GAP_S, on_modelled_device, trace


def test_steps_are_as_long_as_gaps_allow_where_first_tokens_would_come_too_late() -> None:
    """34 requests a second are nearly all that the device can compute."""
    arrivals = trace(34, 5)
    limited, unlimited = (
        on_modelled_device(arrivals, {"policy": "fair_share", "target_gap_ms": gap_ms})
        for gap_ms in (50.0, None)
    )
    assert len(limited) == len(unlimited) == len(arrivals)
    assert all(answer.gap_s <= GAP_S for answer in limited)
    assert sum(answer.is_good for answer in limited) > 0.95 * len(arrivals)
    assert sum(answer.gap_s <= GAP_S for answer in unlimited) < 0.5 * len(arrivals)
