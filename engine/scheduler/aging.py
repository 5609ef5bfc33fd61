"""Priorities that waiting improves, so that no class starves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.request import Request


def aged_priority(request: Request, aging_s: float) -> float:
    """The key by which requests of different priorities compare: the lower goes first.

    A request gains one level for every ``aging_s`` it has waited. At any time ``now`` its effective
    priority is ``priority - (now - arrival_s) / aging_s``. As ``now / aging_s`` is the same for
    all, the order of these is that of ``priority + arrival_s / aging_s``, which never changes: a
    heap can hold it.
    """
    return request.priority + request.arrival_s / aging_s


def outranked(request: Request, running: Iterable[Request], aging_s: float) -> list[Request]:
    """The running requests of a lower class that have not waited long enough to make up for it,
    the least important first."""
    key = aged_priority(request, aging_s)
    lower = [
        other
        for other in running
        if other.priority > request.priority and aged_priority(other, aging_s) > key
    ]
    lower.sort(key=lambda other: (aged_priority(other, aging_s), other.arrival), reverse=True)
    return lower
