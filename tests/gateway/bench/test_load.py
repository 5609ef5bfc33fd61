"""What clients do that do not read to the end, against the gateway over the engine double."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.bench.load import Load, Workload, _is_one_of
from gateway.bench.stream import Reader
from gateway.commands.database import Address
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway, served_double, until

pytestmark = pytest.mark.asyncio


def load(gateway: Gateway, **workload: float) -> Load:
    fields = Workload(**{"max_tokens": 30, **workload})  # type: ignore[arg-type]
    return Load(Address(gateway.url, gateway.api_key), MODEL, fields)


@pytest.mark.parametrize("uses_websocket", [False, True])
async def test_who_leaves_ends_the_work_of_the_engine(
    gateway: Gateway, double: EngineDouble, uses_websocket: bool
) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.02)
    level = await load(gateway, leaving=1.0, uses_websocket=uses_websocket).level(3, 9)
    assert (level.requests, level.errors) == (9, 0)
    await until(lambda: not double.running)
    assert len(double.aborted) == 9
    assert all(number < 30 for number in double.generated.values())


async def test_who_stalls_stays_until_the_end(model_dir: Path) -> None:
    async with served_double(model_dir) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.002)
        began = time.monotonic()
        level = await load(gateway, stalled=0.5).level(4, 0, duration_s=1.5)
        assert 1.5 <= time.monotonic() - began < 60
        assert level.errors == 0
        assert level.requests > 4  # those that read go on meanwhile
        await until(lambda: not double.running)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.3, 0.5, 1.0])
async def test_a_share_is_spread_evenly(share: float) -> None:
    chosen = [number for number in range(1000) if _is_one_of(number, share)]
    assert len(chosen) == math.floor(1000 * share)
    gaps = {b - a for a, b in pairwise(chosen)}
    assert not gaps or max(gaps) - min(gaps) <= 1


async def test_leaving_is_seen_in_the_sample(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.002)
    work = load(gateway, leaving=1.0)
    stream = await work._connect()
    before = time.monotonic()
    sample = await stream.request(work._next(stalls=False))
    assert before < sample.left_at_s < time.monotonic()
    assert sample.reader is Reader.LEAVING
    await until(lambda: double.aborted)
    ((request_id, _),) = double.aborted.items()
    assert request_id.partition("-")[0] == sample.request_id
    await asyncio.sleep(0)
    assert stream.closed
