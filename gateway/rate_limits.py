"""The ``x-ratelimit-*`` headers, as in OpenAI's API: what is left of a client's limits."""

from __future__ import annotations

from tenants.limits import QuotaAnswer, Window

NAMES = tuple(
    f"x-ratelimit-{what}-{unit}"
    for what in ("limit", "remaining", "reset")
    for unit in ("requests", "tokens")
)
"""All headers that ``headers`` may give."""


def headers(answer: QuotaAnswer) -> dict[str, str]:
    """``x-ratelimit-*`` of the scope with the least left; none where nothing limits the rate."""
    return {**_window("requests", answer.requests), **_window("tokens", answer.tokens)}


def duration(microseconds: int) -> str:
    """As OpenAI writes it: ``17ms``, ``8.64s``, ``6m0s``, ``1h0m0s``. Rounds up."""
    milliseconds = -(-microseconds // 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    seconds = f"{milliseconds / 1000:g}s"
    if minutes == 0:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def _window(unit: str, window: Window | None) -> dict[str, str]:
    if window is None:
        return {}
    return {
        f"x-ratelimit-limit-{unit}": str(window.limit),
        f"x-ratelimit-remaining-{unit}": str(window.remaining),
        f"x-ratelimit-reset-{unit}": duration(window.reset_us),
    }
