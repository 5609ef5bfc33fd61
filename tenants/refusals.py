"""Refusals that hold whatever comes: a flood of them costs neither the store nor a tokenizer.

Of all limits, the rate of requests alone gives nothing back but by time: until a request fits
again, each one is refused, however short it is and whatever ends meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tenants import buckets
from tenants.limits import QuotaAnswer, ScopePolicy, Window
from tenants.types import Principal

MAX_S = 1.0
"""How long a refusal is known at most: then the store's clock may have been set, or its limits."""
MAX_KNOWN = 10_000


class _Known(NamedTuple):
    answer: QuotaAnswer
    answered_at: float
    until: float


class Refusals:
    """What the store refused last. One per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[ScopePolicy, ...], _Known] = {}
        """By all policies of who was refused, the oldest first: an answer also tells how much is
        left of limits that others may not have. Policies that change are others."""

    def __len__(self) -> int:
        return len(self._known)

    def note(self, principal: Principal, answer: QuotaAnswer, *, asked_at: float) -> None:
        """Remember an answer, if others will be the same. ``asked_at``: in seconds of the clock,
        before the store was asked, so that nothing is refused for longer than the store would."""
        policies = principal.policies
        if answer.refused_by != "requests" or answer.wait_us is None:
            return
        if all(policy.scope_kind != answer.scope_kind for policy in policies):
            return  # These policies are older than the one that refused.
        until = asked_at + min(MAX_S, answer.wait_us / 1e6)
        self._known.pop(policies, None)
        self._known[policies] = _Known(answer, self._clock(), until)
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def find(self, principal: Principal) -> QuotaAnswer | None:
        """The answer to any request of this principal, as far as it is known; None if it is not."""
        if not self._known or (known := self._known.get(principal.policies)) is None:
            return None
        now = self._clock()
        if now < known.until:
            return _after(known.answer, int((now - known.answered_at) * 1e6))
        del self._known[principal.policies]
        return None


def _after(answer: QuotaAnswer, elapsed_us: int) -> QuotaAnswer:
    """The same refusal some microseconds later."""
    assert answer.wait_us is not None
    return msgspec.structs.replace(
        answer,
        wait_us=max(1, answer.wait_us - elapsed_us),
        requests=_refilled(answer.requests, elapsed_us),
        tokens=_refilled(answer.tokens, elapsed_us),
    )


def _refilled(window: Window | None, elapsed_us: int) -> Window | None:
    if window is None:
        return None
    reset_us = max(0, window.reset_us - elapsed_us)
    left = buckets.remaining(reset_us * window.limit, window.limit)
    return Window(limit=window.limit, remaining=left, reset_us=reset_us)
