"""Refusals that hold whatever comes: a flood of them costs neither the store nor a tokenizer.

Two limits give nothing back but by time. A rate of requests refuses each one until one fits again,
however short it is and whatever ends meanwhile. And what is left of a month in scopes in which
nothing runs can only become less, until the next month.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tenants import buckets
from tenants.limits import MonthLeft, Price, QuotaAnswer, ScopePolicy, Window
from tenants.types import Principal

MAX_S = 1.0
"""How long a refusal is known at most: then the store's clock may have been set, or its limits."""
MAX_KNOWN = 10_000

_Policies = tuple[ScopePolicy, ...]


class _Known(NamedTuple):
    """A refusal, and until when it holds."""

    answer: QuotaAnswer
    answered_at: float
    until: float
    left: Sequence[MonthLeft] = ()
    """What scopes in which nothing runs have left of the month, once the store has said so."""


class Refusals:
    """What the store refused last. One per process.

    Refusals are kept by all policies of a principal, because an answer also tells how much is left
    of limits that other keys of the tenant may not have; a changed policy is another one. What an
    answer tells of limits that did not refuse is as old as the answer, ``MAX_S`` at most.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[_Policies, _Known] = {}  # the oldest first
        self._months: dict[_Policies, _Known] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._known) + len(self._months)

    def note(self, principal: Principal, answer: QuotaAnswer, *, asked_at: float) -> bool:
        """Remember an answer, if others will be the same. ``asked_at``: in seconds of the clock,
        before the store was asked, so that nothing is refused for longer than the store would.

        Returns whether to ask the store for ``month_left``, and pass it to ``note_month``.
        """
        policies = principal.policies
        if all(policy.scope_kind != answer.scope_kind for policy in policies):
            return False  # These policies are older than the one that refused.
        if answer.refused_by == "requests" and answer.wait_us is not None:
            until = asked_at + min(MAX_S, answer.wait_us / 1e6)
            _put(self._known, policies, _Known(answer, self._clock(), until))
        if answer.refused_by not in ("monthly_tokens", "monthly_cost"):
            return False
        month = self._months.get(policies)
        if month is not None and self._clock() < month.until:
            return False  # It was asked a moment ago.
        _put(self._months, policies, _Known(answer, self._clock(), asked_at + MAX_S))
        return True

    def note_month(
        self, principal: Principal, left: Sequence[MonthLeft], *, asked_at: float
    ) -> None:
        """Remember what is left of the month, after ``note`` has asked for it."""
        month = self._months.get(principal.policies)
        if month is not None and left:
            until = asked_at + min(MAX_S, left[0].lasts_us / 1e6)
            self._months[principal.policies] = month._replace(left=left, until=until)

    def find(
        self, principal: Principal, prompt_tokens: int = 1, price: Price | None = None
    ) -> QuotaAnswer | None:
        """The answer to any request of this principal with at least such a prompt, as far as it is
        known; None if it is not. Every prompt has a token."""
        if not self._known and not self._months:
            return None
        refused = self._refused_by_month(principal, prompt_tokens, price or Price())
        return refused or self._refused_by_rate(principal)

    def _refused_by_month(
        self, principal: Principal, prompt_tokens: int, price: Price
    ) -> QuotaAnswer | None:
        now = self._clock()
        month = _current(self._months, principal.policies, now)
        if month is None:
            return None
        for left in month.left:
            if (limit := left.refuses(prompt_tokens, price)) is not None:
                answer = msgspec.structs.replace(
                    month.answer, refused_by=limit, scope_kind=left.scope_kind
                )
                return _after(answer, int((now - month.answered_at) * 1e6))
        return None

    def _refused_by_rate(self, principal: Principal) -> QuotaAnswer | None:
        now = self._clock()
        known = _current(self._known, principal.policies, now)
        return known and _after(known.answer, int((now - known.answered_at) * 1e6))


def _put(table: dict[_Policies, _Known], policies: _Policies, value: _Known) -> None:
    table.pop(policies, None)
    table[policies] = value
    if len(table) > MAX_KNOWN:
        del table[next(iter(table))]


def _current(table: dict[_Policies, _Known], policies: _Policies, now: float) -> _Known | None:
    """The refusal of these policies, if it still holds; else it is dropped."""
    if not table or (found := table.get(policies)) is None:
        return None
    if now < found.until:
        return found
    del table[policies]
    return None


def _after(answer: QuotaAnswer, elapsed_us: int) -> QuotaAnswer:
    """The same refusal some microseconds later."""
    return msgspec.structs.replace(
        answer,
        wait_us=None if answer.wait_us is None else max(1, answer.wait_us - elapsed_us),
        requests=_refilled(answer.requests, elapsed_us),
        tokens=_refilled(answer.tokens, elapsed_us),
    )


def _refilled(window: Window | None, elapsed_us: int) -> Window | None:
    if window is None:
        return None
    reset_us = max(0, window.reset_us - elapsed_us)
    left = buckets.remaining(reset_us * window.limit, window.limit)
    return Window(limit=window.limit, remaining=left, reset_us=reset_us)
