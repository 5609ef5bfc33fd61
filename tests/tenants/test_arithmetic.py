"""What the database's functions compute is what this process computes, at every edge of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tenants.buckets import MAX_USED, UNIT, charged, refilled
from tenants.limits import Price, room

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

PRICES = (0, 1, 333_333, 999_999, 1_000_000, 1_000_001, 7_000_000)
COUNTS = (0, 1, 2, 1_000, 999_999)
NOW = datetime(2030, 5, 17, 12, tzinfo=UTC)


async def compare(
    dsn: str, call: str, edges: Sequence[Sequence[Any]], types: str, ours: Callable[..., Any]
) -> None:
    """All combinations of edges. call: SQL over x.a, x.b and so on, of these types."""
    cases = list(itertools.product(*edges))
    columns = [list(column) for column in zip(*cases, strict=True)]
    names = [chr(ord("a") + place) for place in range(len(edges))]
    arrays = ", ".join(f"${place + 1}::{kind}[]" for place, kind in enumerate(types.split()))
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            f"SELECT {call} FROM unnest({arrays}) WITH ORDINALITY AS x ({', '.join(names)}, place)"
            " ORDER BY x.place",
            *columns,
        )
    finally:
        await connection.close()
    differing = [
        (case, row[0], expected)
        for case, row in zip(cases, rows, strict=True)
        if row[0] != (expected := ours(*case))
    ]
    assert not differing


async def test_the_room_of_a_month(pg_dsn: str) -> None:
    def ours(
        wanted: int, prompt: int, tokens: int | None, cost: int | None, price: int, more: int
    ) -> int:
        both = Price(prompt=price, completion=more)
        return max(0, room(wanted, prompt, both, tokens_left=tokens, cost_left_micro=cost))

    lefts = (None, -1, 0, 1, 2, 1_000)
    await compare(
        pg_dsn,
        "greatest(0, limit_room(x.a, x.b, x.c, x.d, x.e, x.f))",
        ((0, 1, 5, 10**6), (0, 1, 2, 999_999), lefts, lefts, PRICES, PRICES),
        "bigint " * 6,
        ours,
    )


async def test_a_cost(pg_dsn: str) -> None:
    await compare(
        pg_dsn,
        "limit_cost(x.a, x.b, x.c, x.d)",
        (COUNTS, COUNTS, PRICES, PRICES),
        "bigint " * 4,
        lambda prompt, completion, price, more: Price(prompt=price, completion=more).cost(
            prompt, 0, completion
        ),
    )


async def test_the_level_of_a_rate(pg_dsn: str) -> None:
    levels = (0, 1, 59_999_999, UNIT, UNIT + 1, 600 * UNIT, MAX_USED - 1, MAX_USED)
    amounts = (-(10**9), -1, 0, 1, 2, 10**9)
    await compare(pg_dsn, "limit_charged(x.a, x.b)", (levels, amounts), "bigint bigint", charged)

    rates = (1, 2, 60, 59_999_999, 2**31 - 1)
    times_us = (-1, 0, 1, 2, 59_999_999, 60_000_000, 60_000_001, 10**12)

    def ours(level: int, rate: int, since: datetime) -> int:
        return refilled(level, rate, (NOW - since) // timedelta(microseconds=1))

    await compare(
        pg_dsn,
        f"limit_refilled(x.a, x.b, x.c, '{NOW.isoformat()}')",
        (levels, rates, [NOW - timedelta(microseconds=time_us) for time_us in times_us]),
        "bigint bigint timestamptz",
        ours,
    )
