"""A tenant that asks for as much as the engine can ever do, beside one that asks for little.

The same bounds hold against an adversary in ``tests/engine/scheduler/test_fair_share_machine.py``,
on the real scheduler without a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.attack.neighbour import Neighbour, Watch
from tests.attack.serving import Deployment

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

MAX_TIMES = 4.0
"""The time to the first token beside a flood, compared with that beside one stream."""
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 2000}},
    "required": ["text"],
    "additionalProperties": False,
}
FLOODS: dict[str, dict[str, Any]] = {
    "long answers": {},
    "choices": {"n": 8},
    "less important": {"priority": 3},
    "stop strings": {"stop": ["never said", "nor this"]},
    "a grammar": {
        "ignore_eos": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "long", "strict": False, "schema": SCHEMA},
        },
    },
    "a long prompt": {
        "messages": [{"role": "user", "content": "Tell me a story about a fox. " * 60}]
    },
}


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database) as deployment:
        yield deployment


async def watch_beside(
    deployment: Deployment,
    seconds: float,
    num_streams: int,
    pause_s: float,
    *,
    num_tokens: int = 40,
    **fields: Any,
) -> Watch:
    """What a tenant feels that asks for a few tokens, and again after a pause, while another one
    keeps so many streams of 1,500 tokens going."""
    flood = deployment.member(f"flood of {num_streams}")
    member = deployment.member("beside a flood")
    async with (
        Neighbour(
            deployment, flood.key, num_streams=num_streams, max_tokens=1500, fields=fields
        ) as flooding,
        Neighbour(
            deployment, member.key, num_streams=1, max_tokens=num_tokens, pause_s=pause_s
        ) as neighbour,
    ):
        watch = await neighbour.watch_for(seconds)
        while len(watch.ttfts_s) < 4 and seconds < 60:  # as on a busy machine
            seconds *= 2
            watch = await neighbour.watch_for(seconds)
        assert (await flooding.watch_for(0)).gaps_s, "nothing of the flood was served"
        return watch


async def test_a_flood_hardly_delays_a_first_token(deployment: Deployment) -> None:
    # Short answers, so that there are first tokens enough in that time.
    calm = await watch_beside(deployment, 2, 1, 0.05, num_tokens=8)
    flooded = await watch_beside(deployment, 2, 80, 0.05, num_tokens=8)
    flooded.assert_first_tokens(calm, times=MAX_TIMES)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FLOODS)
async def test_no_kind_of_flood_delays_a_first_token(deployment: Deployment, kind: str) -> None:
    fields = FLOODS[kind]
    calm = await watch_beside(deployment, 15, 1, 0.3, **(fields | {"n": 1}))
    flooded = await watch_beside(deployment, 30, 150 // fields.get("n", 1), 0.3, **fields)
    print(kind, "calm", calm, "flooded", flooded)
    flooded.assert_first_tokens(calm, times=MAX_TIMES)


@pytest.mark.nightly
async def test_answers_of_one_token_hold_nobody_up(deployment: Deployment) -> None:
    """Closed loops of prompts of twenty-odd tokens with answers of one: nearly all work is that of
    beginning and ending requests, at the gateway and in the engine's steps. They run at the lowest
    priority, as if they had a machine of their own, and all tokens are visible ones."""
    flood, member = deployment.member("one token"), deployment.member("beside one token")
    async with httpx.AsyncClient(
        base_url=deployment.url, headers={"authorization": f"Bearer {member.key}"}
    ) as client:
        asked = {"model": deployment.model, "prompt": " fox", "add_special_tokens": False}
        (token_id,) = (await client.post("/v1/tokenize", json=asked)).json()["tokens"]
    fields = {"logit_bias": {str(token_id): 100}}
    watches = []
    for num_loops in (1, 150):
        async with (
            Neighbour(
                deployment, flood.key, num_streams=num_loops, max_tokens=1, fields=fields
            ) as loops,
            Neighbour(
                deployment, member.key, num_streams=1, max_tokens=8, pause_s=0.05, fields=fields
            ) as neighbour,
        ):
            loops.give_way()
            async with loops.watch() as asked_for:
                watches.append(await neighbour.watch_for(30))
            assert len(asked_for.ttfts_s) > 30 * num_loops**0.5, "hardly anything was asked for"
    calm, flooded = watches
    print("calm", calm, "flooded", flooded)
    flooded.assert_unharmed(calm, ttft_times=MAX_TIMES)
