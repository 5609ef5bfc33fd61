"""Requests that are read but not admitted, counted by each process itself.

A request that is refused costs the gateway its reading, so it counts for the rate of requests as
one that is admitted does. The store counts what it admits. Until then, and for good if it never
does, the process that reads a request counts it: in memory, at the same rates. So no request is
counted twice, no refused one costs the store anything, and a process reads at most as many requests
in vain as its client may have admitted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from msgspec.structs import replace

from tenants import buckets
from tenants.errors import QuotaExceeded
from tenants.limits import QuotaAnswer, ScopePolicy, Window
from tenants.types import Principal

MAX_SCOPES = 30_000


@dataclass(slots=True)
class _Bucket:
    """As the store's: ``used`` in the units of ``buckets``, as of ``at_us``."""

    at_us: int
    per_minute: int
    used: int = 0

    def move_to(self, now_us: int, per_minute: int) -> None:
        self.used = buckets.refilled(self.used, self.per_minute, now_us - self.at_us)
        self.per_minute, self.at_us = per_minute, now_us

    @property
    def window(self) -> Window:
        return Window(
            limit=self.per_minute,
            remaining=buckets.remaining(self.used, self.per_minute),
            reset_us=buckets.reset_us(self.used, self.per_minute),
        )


class Attempts:
    """The attempts of all clients of this process, by scope. Scopes without a rate of requests
    count none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[UUID, _Bucket] = OrderedDict()
        """The one that was used longest ago comes first."""

    def __len__(self) -> int:
        return len(self._buckets)

    def begin(self, principal: Principal) -> Attempt:
        """Count a request in all scopes of the principal. Raises ``QuotaExceeded`` and counts
        nothing if one of them has no room for it."""
        if (answer := self.refusal(principal)) is not None:
            raise QuotaExceeded(answer)
        for _, bucket in self._of(principal):
            bucket.used = buckets.charged(bucket.used, 1)
        while len(self._buckets) > MAX_SCOPES:
            self._buckets.popitem(last=False)
        return Attempt(self, principal)

    def refusal(self, principal: Principal) -> QuotaAnswer | None:
        """The refusal that ``begin`` would raise now. It names the scope with the longest wait,
        since a request must wait for all of them."""
        found: QuotaAnswer | None = None
        for policy, bucket in self._of(principal):
            wait_us = buckets.wait_us(bucket.used, 1, bucket.per_minute) or 0
            if wait_us > (0 if found is None else found.wait_us or 0):
                found = QuotaAnswer(
                    state="refused",
                    refused_by="requests",
                    scope_kind=policy.scope_kind,
                    wait_us=wait_us,
                    requests=bucket.window,
                )
        return found

    def give_back(self, principal: Principal) -> None:
        """Count a request no more: the store does, or nobody should."""
        for _, bucket in self._of(principal):
            bucket.used = buckets.charged(bucket.used, -1)

    def window(self, principal: Principal) -> Window | None:
        """The window of the scope with the least left; None if no scope has a rate."""
        windows = [bucket.window for _, bucket in self._of(principal)]
        return min(windows, key=lambda window: window.remaining, default=None)

    def _of(self, principal: Principal) -> Iterator[tuple[ScopePolicy, _Bucket]]:
        """The scopes that have a rate, and their buckets as of now."""
        now_us = int(self._clock() * 1e6)
        for policy in principal.policies:
            per_minute = policy.limits.requests_per_minute
            if per_minute is None:
                continue
            bucket = self._buckets.setdefault(policy.scope_id, _Bucket(now_us, per_minute))
            self._buckets.move_to_end(policy.scope_id)
            bucket.move_to(now_us, per_minute)
            yield policy, bucket


def with_less(answer: QuotaAnswer, window: Window | None) -> QuotaAnswer:
    """The store's answer, with the ``window`` of refused requests where that has less left."""
    known = answer.requests
    if known is None or window is None or window.remaining >= known.remaining:
        return answer
    return replace(answer, requests=window)


class Attempt:
    """One request that is read. It counts until it ``ends``, and for good if it never does."""

    def __init__(self, attempts: Attempts, principal: Principal) -> None:
        self._attempts = attempts
        self._principal = principal
        self._counts = True

    def end(self) -> None:
        """It was not refused: the store counts it, if anybody does. Idempotent."""
        if self._counts:
            self._counts = False
            self._attempts.give_back(self._principal)

    def failed(self, error: Exception, *, is_ours: bool) -> None:
        """It was refused with ``error``. It goes on counting unless the fault is ours, or the rate
        itself refused it and has told when the next one may come."""
        if is_ours or (isinstance(error, QuotaExceeded) and error.answer.refused_by == "requests"):
            self.end()

    @property
    def wait_us(self) -> int:
        """Microseconds until the next attempt may come."""
        answer = self._attempts.refusal(self._principal)
        return 0 if answer is None else answer.wait_us or 0

    @property
    def window(self) -> Window | None:
        """How much refused requests leave of the rates; None if there are none."""
        return self._attempts.window(self._principal)
