"""Decides how many replicas a model has, from the load that its engines report.

    rows of the registry ──Meter──► Load ──decide──► Plan

Nothing here waits or asks for the time: the same loads at the same times give the same plans.
There are more replicas once requests have waited too long for ``up_after_s``, and fewer once fewer
would have done for all of ``down_after_s``. What a replica can serve is learnt whenever they are
too few, so that a steady load is not tried with too few again and again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tenants.shared import EngineRecord

WINDOW_S = 20.0
"""Over which rates are measured: engines report every 5 s."""
LOOKAHEAD_S = 30.0
"""A queue that will be gone by then needs no further replica."""
HEADROOM = 0.7
"""Of what the replicas can serve, the most that fewer of them must suffice for."""
LESSON = 12
"""How many times ``down_after_s`` it is remembered what a replica can serve; after each mistake
that followed, twice as long, but for a day at most. So a steady load sees ever fewer attempts."""
DAY_S = 86400.0


class Bounds(NamedTuple):
    """Settings of a model."""

    min_replicas: int
    max_replicas: int
    queue_s: float
    """How long requests may wait before there are more replicas."""
    up_after_s: float
    down_after_s: float


class Load(NamedTuple):
    """What the replicas of a model do."""

    num_ready: int = 0
    num_running: int = 0
    num_waiting: int = 0
    capacity: int = 0
    """Requests that all of them together run at once, at most."""
    arrivals_per_s: float = 0.0
    admitted_per_s: float = 0.0
    queue_s: float = 0.0
    """How long those waited that were admitted lately."""
    is_wanted: bool = False
    """Whether requests came lately that no engine could take."""

    @property
    def is_idle(self) -> bool:
        return not (
            self.num_running
            or self.num_waiting
            or self.arrivals_per_s
            or self.admitted_per_s
            or self.is_wanted
        )

    @property
    def wait_s(self) -> float:
        """How long a request may wait, ``LOOKAHEAD_S`` from now, if all goes on like this."""
        if not self.num_waiting:
            return 0.0
        growth_per_s = self.arrivals_per_s - self.admitted_per_s
        queue = self.num_waiting + growth_per_s * LOOKAHEAD_S
        if queue <= 0:
            return 0.0
        wait_s = queue / self.admitted_per_s if self.admitted_per_s else math.inf
        return max(wait_s, self.queue_s if growth_per_s >= 0 else 0.0)


class Plan(NamedTuple):
    """How many replicas there are to be, and what the next decision must know of this one."""

    num_replicas: int
    busy_since: float | None = None
    """Since when requests wait too long."""
    quiet_since: float | None = None
    """The beginning of a stretch of ``down_after_s`` in which they do not."""
    quiet_need: int = 0
    """The most replicas that its loads needed."""
    served_per_s: float | None = None
    """Requests/s that each replica admitted when they were too few; None: not known any more."""
    learnt_at: float = 0.0
    """When that was."""
    num_lessons: int = 0
    """How often it was forgotten and found out again."""


def decide(bounds: Bounds, plan: Plan, load: Load, now: float) -> Plan:
    """The next plan. ``now``: seconds that only go up. To be called every few seconds."""
    if load.wait_s > bounds.queue_s:
        plan = _when_busy(bounds, plan, load, now)
    else:
        plan = _when_quiet(bounds, plan, load, now)
    least = max(bounds.min_replicas, 1 if load.is_wanted else 0)
    num_replicas = min(max(plan.num_replicas, least), bounds.max_replicas)
    return plan._replace(num_replicas=num_replicas)


def _when_busy(bounds: Bounds, plan: Plan, load: Load, now: float) -> Plan:
    since = now if plan.busy_since is None else plan.busy_since
    plan = plan._replace(busy_since=since, quiet_since=None)
    patience_s = bounds.up_after_s
    if load.num_ready < plan.num_replicas:  # More are on their way, unless these never come.
        patience_s = max(patience_s, bounds.down_after_s)
    if now - since < patience_s or not load.num_ready:
        return plan
    ratio = load.arrivals_per_s / load.admitted_per_s if load.admitted_per_s else 2.0
    wanted = max(load.num_ready + 1, math.ceil(load.num_ready * min(ratio, 2.0)))
    plan = plan._replace(num_replicas=max(plan.num_replicas, wanted), busy_since=now)
    if not load.admitted_per_s:
        return plan
    was_forgotten = plan.served_per_s is None and plan.learnt_at > 0
    return plan._replace(
        served_per_s=load.admitted_per_s / load.num_ready,
        learnt_at=now,
        num_lessons=plan.num_lessons + was_forgotten,
    )


def _when_quiet(bounds: Bounds, plan: Plan, load: Load, now: float) -> Plan:
    known_for_s = min(LESSON * bounds.down_after_s * 2**plan.num_lessons, DAY_S)
    if now - plan.learnt_at > known_for_s:  # Requests may have become lighter.
        plan = plan._replace(served_per_s=None)
    since, need = plan.quiet_since, max(plan.quiet_need, _need(plan, load))
    if since is None:
        since, need = now, _need(plan, load)
    plan = plan._replace(busy_since=None, quiet_since=since, quiet_need=need)
    if now - since < bounds.down_after_s:
        return plan
    if plan.served_per_s is None and need:
        need = max(need, plan.num_replicas - 1)  # An attempt: one step at a time.
    return plan._replace(num_replicas=min(plan.num_replicas, need), quiet_since=None)


def _need(plan: Plan, load: Load) -> int:
    """The fewest replicas that serve this load with some room, as far as can be told; not more than
    there are."""
    if not load.num_ready:  # They load their model, which may take longer than ``down_after_s``.
        return plan.num_replicas
    if load.is_idle:
        return 0
    rows = load.capacity / load.num_ready
    need = (load.num_running + load.num_waiting) / (HEADROOM * rows) if rows else 1.0
    if plan.served_per_s:
        need = max(need, load.arrivals_per_s / (HEADROOM * plan.served_per_s))
    return max(1, math.ceil(min(need, plan.num_replicas)))


class _Totals(NamedTuple):
    at: float
    num_waiting: int
    num_admitted: int
    queue_time_s: float


class Meter:
    """Measures the load of a model's engines from their rows."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], EngineRecord] = {}
        """By id and epoch: with a new epoch an engine counts from 0."""
        self._totals: deque[_Totals] = deque()

    def measure(self, rows: Iterable[EngineRecord], now: float, *, is_wanted: bool) -> Load:
        """``rows``: those of the model's engines that are registered now."""
        seen = {(row.id, row.epoch): row for row in rows if row.condition in ("ready", "drained")}
        num_admitted, queue_time_s = 0, 0.0
        if self._totals:
            num_admitted, queue_time_s = (
                self._totals[-1].num_admitted,
                self._totals[-1].queue_time_s,
            )
            for key, row in seen.items():
                last = self._last.get(key)
                num_admitted += row.num_admitted - (last.num_admitted if last else 0)
                queue_time_s += row.queue_time_s - (last.queue_time_s if last else 0)
        self._last = seen
        serving = [row for row in seen.values() if row.condition == "ready"]
        num_waiting = sum(row.num_waiting for row in seen.values())
        self._totals.append(_Totals(now, num_waiting, num_admitted, queue_time_s))
        while len(self._totals) > 2 and self._totals[1].at <= now - WINDOW_S:
            self._totals.popleft()
        first, last_ = self._totals[0], self._totals[-1]
        took_s = last_.at - first.at or 1.0
        admitted = last_.num_admitted - first.num_admitted
        arrived = admitted + last_.num_waiting - first.num_waiting
        return Load(
            num_ready=len(serving),
            num_running=sum(row.num_running for row in seen.values()),
            num_waiting=num_waiting,
            capacity=sum(row.capacity for row in serving),
            arrivals_per_s=max(0.0, arrived / took_s),
            admitted_per_s=max(0.0, admitted / took_s),
            queue_s=(last_.queue_time_s - first.queue_time_s) / admitted if admitted > 0 else 0.0,
            is_wanted=is_wanted,
        )
