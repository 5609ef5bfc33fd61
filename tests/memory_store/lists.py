"""Searching, paging and adding up rows in memory, as the statements do it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from tenants.types import UsageBucket, UsageEvent, UsageGroup, UsageSum

T = TypeVar("T")

_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")


def contains(text: str, search: str | None) -> bool:
    """Whether ``search`` is a part of the text, in any case; None is a part of all."""
    return (search or "").lower() in text.lower()


def page_of(
    rows: Iterable[T], place: Callable[[T], Any], after: Any | None, limit: int | None
) -> list[T]:
    """Rows in the order of their places, from the one behind ``after`` on."""
    found = sorted(rows, key=place)
    return [row for row in found if after is None or place(row) > after][:limit]


def place_of(row: UsageSum) -> list[tuple[bool, Any]]:
    """Its place in the order of ``Store.sum_usage``."""
    return [(part is not None, part) for part in msgspec.structs.astuple(row)[:5]]


def summed(
    events: Iterable[UsageEvent],
    projects: Mapping[UUID, UUID],
    start: datetime,
    end: datetime,
    groups: Collection[UsageGroup],
    bucket: UsageBucket,
) -> Collection[UsageSum]:
    """Sums of ``start <= hour < end``. projects: by the ids of their keys."""
    sums: dict[tuple[object, ...], UsageSum] = {}
    for event in events:
        hour = event.created_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if not start <= hour < end:
            continue
        at = {"total": None, "day": hour.replace(hour=0), "hour": hour}[bucket]
        named = {
            "tenant_id": event.tenant_id if "tenant" in groups else None,
            "project_id": projects[event.key_id] if "project" in groups else None,
            "key_id": event.key_id if "key" in groups else None,
            "model": event.model if "model" in groups else None,
        }
        group = (at, *named.values())
        so_far = sums.get(group) or UsageSum(start=at, **named)  # type: ignore[arg-type]
        sums[group] = msgspec.structs.replace(
            so_far,
            requests=so_far.requests + 1,
            **{name: getattr(so_far, name) + getattr(event, name) for name in _COUNTS},
        )
    return sums.values()
