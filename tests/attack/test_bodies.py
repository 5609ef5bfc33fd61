"""Bodies of 4 MB that are refused: what they took is given back.

What is large stands in every place that a route's struct has, so that a new route or field is tried
without a test of its own. That no refusal leaves a cycle, which Python would find late, is in
``tests/gateway/test_garbage.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

import httpx
import pytest

from gateway.schemas.operation import Operation
from tests.attack.neighbour import Neighbour
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


SLOW = ("1e300," * 600_000, "[]," * 1_200_000)
"""What takes a decoder seconds, in four megabytes."""


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
async def test_no_numbers_or_arrays_hold_the_loop(deployment: Deployment) -> None:
    """Not in a body, and not in a text that is decoded once more: the arguments of a call."""
    member, neighbour = deployment.member("slow"), deployment.member("calm")
    contents = []
    for values in SLOW:
        text = f"[{values[:-1]}]"
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
        asked: dict[str, object] = {"model": deployment.model, "messages": [{"role": "user"}]}
        contents.append(json.dumps(asked)[:-1] + f', "response_format": {text}}}')
        asked["messages"] = [{"role": "assistant", "tool_calls": [call]}]
        contents.append(json.dumps(asked))
    headers = {"authorization": f"Bearer {member.key}", "content-type": "application/json"}
    async with (
        Neighbour(deployment, neighbour.key) as beside,
        httpx.AsyncClient(base_url=deployment.url, timeout=60, headers=headers) as one,
    ):
        calm = await beside.watch_for(4)
        async with beside.watch() as attacked:
            for content in contents * 4:
                answer = await one.post("/v1/chat/completions", content=content)
                assert answer.status_code == 413
        attacked.assert_unharmed(calm)
