"""Bodies of 4 MB that are refused: what they took is given back.

What is large stands in every place that a route's struct has, so that a new route or field is tried
without a test of its own. That no refusal leaves a cycle, which Python would find late, is in
``tests/gateway/test_garbage.py``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import httpx
import pytest

from gateway.schemas.operation import Operation
from tests.attack.serving import Deployment, assert_memory_is_back
from tests.gateway import shapes

NUM_BODIES, NUM_WARMING, NUM_AT_ONCE = 1000, 60, 8
BODY_BYTES = 4_000_000


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, replay_tokens_per_s=20) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("operation", shapes.WITH_BODY, ids=lambda operation: operation.path)
async def test_memory_is_back_after_refused_bodies(
    deployment: Deployment, operation: Operation
) -> None:
    member = deployment.member("large")
    found = itertools.cycle(shapes.bodies(operation, BODY_BYTES, values={"text", "name", "texts"}))
    statuses: list[int] = []

    async def send() -> None:
        headers = {"authorization": f"Bearer {member.key}", "content-type": "application/json"}
        async with httpx.AsyncClient(base_url=deployment.url, timeout=60, headers=headers) as one:
            while num_left:
                num_left.pop()
                answer = await one.post(operation.path, content=next(found).text)
                statuses.append(answer.status_code)

    num_left = [1] * NUM_WARMING  # what is made once
    await asyncio.gather(*(send() for _ in range(NUM_AT_ONCE)))
    before = deployment.memory()
    statuses.clear()
    num_left = [1] * NUM_BODIES
    await asyncio.gather(*(send() for _ in range(NUM_AT_ONCE)))
    assert sum(400 <= status < 500 for status in statuses) > NUM_BODIES // 2
    assert not [status for status in statuses if status >= 500]
    assert_memory_is_back(deployment, before, within_bytes=50 * 2**20)
