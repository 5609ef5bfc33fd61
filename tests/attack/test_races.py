"""Hundreds of simultaneous requests at two workers, of several keys of one tenant and by all APIs:
not one more is served than a limit allows, and the ledger has what the clients were told.

The same limits are raced for at the store itself in ``tests/tenants/test_workers.py``, and with
tokens that arrive late in ``tests/gateway/test_limits.py``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tenants.limits import Limits
from tests.attack.neighbour import Neighbour
from tests.attack.serving import MODEL, Deployment, Member

pytestmark = [pytest.mark.pg, pytest.mark.nightly, pytest.mark.asyncio]

NUM_REQUESTS = 300
PRICE = 1_000_000
"""Of each token: 1 in the ledger's unit."""
APIS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    prices = {"price_prompt": PRICE, "price_cached": PRICE, "price_completion": PRICE}
    with Deployment(database, replay_tokens_per_s=100, settings={"models": prices}) as deployment:
        yield deployment


@dataclass
class Told:
    """What clients were told by all answers together."""

    statuses: list[int] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    num_prompt: int = 0
    num_completion: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def num_served(self) -> int:
        return self.statuses.count(200)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_completion


def body_of(path: str, max_tokens: int) -> dict[str, Any]:
    question = "Tell me about foxes."
    if path == "/v1/responses":
        return {"model": MODEL, "input": question, "max_output_tokens": max_tokens, "store": False}
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": max_tokens}
    if path == "/v1/completions":
        return fields | {"prompt": question}
    return fields | {"messages": [{"role": "user", "content": question}]}


async def flood(deployment: Deployment, keys: list[str], *, max_tokens: int) -> Told:
    """All requests at once, each on a connection of its own: the kernel spreads them over the
    workers."""
    told = Told()

    async def ask(number: int) -> None:
        path = APIS[number % len(APIS)]
        headers = {"authorization": f"Bearer {keys[number % len(keys)]}"}
        answer = await client.post(path, json=body_of(path, max_tokens), headers=headers)
        told.statuses.append(answer.status_code)
        document = answer.json()
        if answer.status_code != 200:
            told.codes.add(document["error"]["code"])
            return
        usage = document["usage"]
        told.num_prompt += usage.get("prompt_tokens", 0) + usage.get("input_tokens", 0)
        told.num_completion += usage.get("completion_tokens", 0) + usage.get("output_tokens", 0)

    limits = httpx.Limits(max_connections=NUM_REQUESTS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=deployment.url, timeout=120, limits=limits) as client:
        await asyncio.gather(*map(ask, range(NUM_REQUESTS)))
    told.seconds = time.monotonic() - told.began
    assert set(told.statuses) <= {200, 429}, set(told.statuses)
    return told


def keys_of(deployment: Deployment, member: Member) -> list[str]:
    return [member.key, *(deployment.key(member, "chat", "responses") for _ in range(2))]


async def check_the_books(deployment: Deployment, member: Member, told: Told) -> None:
    booked = await deployment.settled(member, told.num_served)
    assert (booked.requests, booked.prompt_tokens, booked.completion_tokens) == (
        told.num_served,
        told.num_prompt,
        told.num_completion,
    )
    assert booked.cost_micro == told.num_tokens


async def test_requests_per_minute(deployment: Deployment) -> None:
    member = deployment.member("rpm", Limits(requests_per_minute=60))
    told = await flood(deployment, keys_of(deployment, member), max_tokens=2)
    assert 60 <= told.num_served <= 60 + told.seconds + 1
    assert told.codes == {"rate_limit_exceeded"}
    await check_the_books(deployment, member, told)


async def test_tokens_per_minute(deployment: Deployment) -> None:
    member = deployment.member("tpm", Limits(tokens_per_minute=1200))
    told = await flood(deployment, keys_of(deployment, member), max_tokens=20)
    assert 600 <= told.num_tokens <= 1200 + 20 * told.seconds + 1
    assert told.codes == {"rate_limit_exceeded"}
    await check_the_books(deployment, member, told)


@pytest.mark.parametrize("limit", ["monthly_tokens", "monthly_cost_micro"])
async def test_a_budget_is_spent_to_its_last_token_and_not_beyond(
    deployment: Deployment, limit: str
) -> None:
    member = deployment.member(limit, Limits(**{limit: 1000}))
    keys = keys_of(deployment, member)
    told = await flood(deployment, keys, max_tokens=40)
    await check_the_books(deployment, member, told)
    assert 900 <= told.num_tokens <= 1000
    assert told.codes == {"insufficient_quota"}


async def test_concurrent_requests(deployment: Deployment) -> None:
    """A client's own view: between the head of an answer and its last token there are never more
    of them than may be, while others try all the time; and an end makes room for the next."""
    member = deployment.member("concurrent", Limits(max_concurrent=5))
    keys = keys_of(deployment, member)
    num_open = most = num_served = num_tokens = 0
    until = time.monotonic() + 6

    async def insist(client: httpx.AsyncClient, number: int) -> None:
        nonlocal num_open, most, num_served, num_tokens
        body = body_of(APIS[0], 30) | {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"authorization": f"Bearer {keys[number % len(keys)]}"}
        while time.monotonic() < until:
            async with client.stream("POST", APIS[0], json=body, headers=headers) as answer:
                if answer.status_code == 429:
                    await answer.aread()
                    await asyncio.sleep(0.02)
                    continue
                assert answer.status_code == 200
                num_open += 1
                most = max(most, num_open)
                num_served += 1
                is_open = True
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line[6:])
                    if usage := chunk.get("usage"):
                        num_tokens += usage["completion_tokens"]
                    if is_open and chunk["choices"] and chunk["choices"][0]["finish_reason"]:
                        num_open, is_open = num_open - 1, False

    limits = httpx.Limits(max_connections=60, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=deployment.url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(insist(client, number) for number in range(50)))
    assert most == 5
    assert num_served > 10
    booked = await deployment.settled(member, num_served)
    assert (booked.requests, booked.completion_tokens) == (num_served, num_tokens)


async def test_a_flood_of_refused_requests_harms_no_neighbour(deployment: Deployment) -> None:
    member = deployment.member("refused", Limits(requests_per_minute=1))
    async with Neighbour(deployment, deployment.member("calm").key) as neighbour:
        calm = await neighbour.watch_for(4)
        async with neighbour.watch() as attacked:
            told = await flood(deployment, [member.key], max_tokens=2)
    attacked.assert_unharmed(calm)
    await check_the_books(deployment, member, told)


async def test_streams_that_are_left_cost_what_was_generated(deployment: Deployment) -> None:
    """Clients that go in mid-answer, over and over, do not get tokens that nobody pays for."""
    member = deployment.member("leaver", Limits(monthly_tokens=2000, max_concurrent=100))
    seen = 0

    async def leave(client: httpx.AsyncClient) -> None:
        nonlocal seen
        body = body_of(APIS[0], 200) | {"stream": True}
        headers = {"authorization": f"Bearer {member.key}"}
        while True:
            async with client.stream("POST", APIS[0], json=body, headers=headers) as answer:
                if answer.status_code == 429:
                    return
                num_lines = 0
                async for line in answer.aiter_lines():
                    num_lines += bool(line)
                    seen += '"content":"' in line and '"content":""' not in line
                    if num_lines == 12:
                        break

    limits = httpx.Limits(max_connections=40, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=deployment.url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(leave(client) for _ in range(20)))
    booked = await deployment.settled(member)
    assert booked.completion_tokens >= seen > 0
    # A client that is refused while others still hold what they give back stops asking.
    assert 1500 <= booked.prompt_tokens + booked.completion_tokens <= 2000
