"""Engines of the bundled model are killed under streams: every answer is the one that comes without
that, and the ledger has each token once.

    SLUICE_STORM_S=600 python -m pytest -m nightly -s tests/e2e/test_fleet.py    # prints the pauses
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest

from tests.attack.serving import MODEL, NO_LIMITS, Deployment, Member, own_database
from tests.gateway.serving import until
from tests.postgres import fresh_database, postgres_server

__all__ = ["postgres_server"]
pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

STORM_S = float(os.environ.get("SLUICE_STORM_S", "600"))
"""How long engines are killed in the long test."""
AWAY_S = 60.0
"""How long PostgreSQL is away."""

STORIES = [
    f"Tell me a story about {animal}." for animal in ("a fox", "two owls", "a bear", "the sea")
]
LIST = {
    "type": "object",
    "properties": {
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 40}
    },
    "required": ["numbers"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def database(postgres_server: str) -> Iterator[str]:
    yield from fresh_database(postgres_server)


def questions(num_tokens: int) -> list[dict[str, Any]]:
    """Greedy, seeded, with a grammar, with penalties and with two choices."""
    chat = [[{"role": "user", "content": story}] for story in STORIES]
    long = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
    free = {**long, "max_tokens": num_tokens, "ignore_eos": True}
    schema = {"name": "numbers", "schema": LIST, "strict": True}
    return [
        {**free, "messages": chat[0], "temperature": 0},
        {**free, "messages": chat[1], "temperature": 1.0, "seed": 1},
        {**free, "messages": chat[2], "temperature": 0.7, "seed": 2, "frequency_penalty": 0.4},
        {**free, "messages": chat[3], "temperature": 1.0, "seed": 3, "n": 2},
        {
            **long,
            "messages": chat[0],
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
    ]


@dataclass
class Answers:
    """What clients got."""

    num_done: int = 0
    num_tokens: int = 0
    num_refused: int = 0
    """Requests that came while no engine served, and were sent again."""
    pauses_s: list[float] = field(default_factory=list)
    """The longest of each stream, between two tokens."""

    def __str__(self) -> str:
        pauses = sorted(self.pauses_s)
        return (
            f"{self.num_done} streams, {self.num_tokens} tokens; longest pause of a stream: median "
            f"{statistics.median(pauses):.2f} s, p99 {pauses[int(0.99 * (len(pauses) - 1))]:.2f} s,"
            f" max {pauses[-1]:.2f} s; {self.num_refused} asked to come again"
        )


async def ask(
    client: httpx.AsyncClient, url: str, question: dict[str, Any], answers: Answers
) -> dict[int, str]:
    """The text of each choice. A request that is refused because no engine serves is sent again, as
    OpenAI's clients do. Raises ``AssertionError`` if the stream does not end well."""
    while (texts := await _ask_once(client, url, question, answers)) is None:
        answers.num_refused += 1
    return texts


async def _ask_once(
    client: httpx.AsyncClient, url: str, question: dict[str, Any], answers: Answers
) -> dict[int, str] | None:
    texts: dict[int, str] = {}
    pause, last, is_done = 0.0, float("inf"), False
    async with client.stream("POST", f"{url}/v1/chat/completions", json=question) as answer:
        if answer.status_code == 503:
            error = json.loads(await answer.aread())["error"]
            assert error["code"] == "engine_unavailable", error
            await asyncio.sleep(float(answer.headers["retry-after"]))
            return None
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                if chunk.get("usage"):
                    answers.num_tokens += chunk["usage"]["completion_tokens"]
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content") or ""
                    if text:  # A heartbeat has none.
                        pause, last = max(pause, time.monotonic() - last), time.monotonic()
                    texts[choice["index"]] = texts.get(choice["index"], "") + text
    assert is_done
    answers.num_done += 1
    answers.pauses_s.append(pause)
    return texts


@contextlib.asynccontextmanager
async def client_of(member: Member) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {member.key}"}
    limits = httpx.Limits(max_connections=1000)
    async with httpx.AsyncClient(timeout=180, headers=headers, limits=limits) as client:
        yield client


async def states(client: httpx.AsyncClient, url: str) -> list[str]:
    """What a worker says of each engine."""
    return list((await client.get(f"{url}/readyz")).json()["engines"].values())


async def num_ready(client: httpx.AsyncClient, url: str) -> int:
    return (await states(client, url)).count("ready")


async def storm(
    deployment: Deployment,
    *,
    num_clients: int,
    num_tokens: int,
    num_kills: int,
    within_s: float,
    num_at_once: int = 1,
    beside: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Clients ask the same questions again and again while engines are killed, ``num_at_once`` of
    them together, and while ``beside`` happens. In the end nothing is held."""
    rng = random.Random(1)
    member, answers = deployment.member("stormy", NO_LIMITS, "admin"), Answers()
    asked = questions(num_tokens)
    async with client_of(member) as client:
        expected = [await ask(client, deployment.url, one, answers) for one in asked]
        is_over, num_killed = asyncio.Event(), 0

        async def chat(number: int) -> None:
            turn = number
            while not is_over.is_set():
                question = turn % len(asked)
                got = await ask(client, deployment.url, asked[question], answers)
                assert got == expected[question]
                turn += 1

        async def kill() -> None:
            nonlocal num_killed
            began = time.monotonic()
            while num_killed < num_kills or time.monotonic() - began < within_s:
                await asyncio.sleep(rng.uniform(0.5, 1.5))
                # One of two at least serves, but for now and then.
                if rng.random() < 0.8:
                    await until(lambda: is_whole(client, deployment), within_s=120)
                if engines := deployment.engines():
                    for engine in rng.sample(engines, min(num_at_once, len(engines))):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            engine.kill()
                            num_killed += 1
            is_over.set()

        chats = (chat(number) for number in range(num_clients))
        await asyncio.gather(kill(), *chats, *([] if beside is None else [beside]))
        await until(lambda: holds_nothing(client, deployment), within_s=120)
    booked = await deployment.settled(member, answers.num_done)
    assert (booked.requests, booked.completion_tokens) == (answers.num_done, answers.num_tokens)
    print(f"{num_killed} kills, {answers}")


async def holds_nothing(client: httpx.AsyncClient, deployment: Deployment) -> bool:
    """Whether all engines are back, and have neither requests nor blocks in use."""
    if set(await states(client, deployment.url)) != {"ready"}:
        return False
    stats = (await client.get(f"{deployment.url}/admin/v1/engine")).json()["stats"]
    num_requests = stats["num_running"] + stats["num_waiting"] + stats["num_parked"]
    return bool(num_requests == 0 and stats["num_free_blocks"] == stats["num_total_blocks"] > 0)


async def is_running(client: httpx.AsyncClient, deployment: Deployment, number: int) -> bool:
    stats = (await client.get(f"{deployment.url}/admin/v1/engine")).json()["stats"]
    return bool(stats["num_running"] == number)


async def is_whole(client: httpx.AsyncClient, deployment: Deployment) -> bool:
    return await num_ready(client, deployment.url) == len(deployment.engines())


def settings(replicas: int, **engine: Any) -> dict[str, dict[str, Any]]:
    # An engine that is killed again and again is started again after a growing pause.
    fleet = {"replicas": replicas, "failover_wait_s": 90.0}
    return {"fleet": fleet, "engine": engine}


async def test_two_engines_are_killed_by_turns(database: str) -> None:
    with Deployment(database, settings=settings(2)) as deployment:
        await storm(deployment, num_clients=5, num_tokens=150, num_kills=2, within_s=0)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
async def test_ten_minutes_of_kills_under_two_hundred_streams(database: str) -> None:
    # Room for all: what waits for others is no pause.
    engine = {"max_num_seqs": 256, "kv_cache_memory_bytes": 768 * 2**20}
    with Deployment(database, settings=settings(3, **engine)) as deployment:
        await storm(deployment, num_clients=200, num_tokens=400, num_kills=10, within_s=STORM_S)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [3, 2])
async def test_two_engines_die_at_once_and_are_replaced(database: str, replicas: int) -> None:
    """Of two, all: streams wait, and who comes meanwhile is asked to come again."""
    with Deployment(database, settings=settings(replicas)) as deployment:
        await storm(
            deployment, num_clients=20, num_tokens=300, num_kills=6, within_s=0, num_at_once=2
        )


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_engines_die_while_postgresql_is_away_for_a_minute() -> None:
    patient = settings(2) | {"tenants": {"key_grace_s": 600.0}}
    with own_database() as own, Deployment(own.dsn, settings=patient) as deployment:

        async def outage() -> None:
            await asyncio.sleep(5)
            await asyncio.to_thread(own.kill)
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(own.start)

        await storm(
            deployment,
            num_clients=10,
            num_tokens=300,
            num_kills=3,
            within_s=AWAY_S + 15,
            beside=outage(),
        )


@pytest.mark.nightly
async def test_a_worker_and_an_engine_die_at_once(database: str) -> None:
    """Connections to that worker break. For the streams of the other one it is a pause."""
    with Deployment(database, settings=settings(2)) as deployment:
        member, answers = deployment.member("twofold", NO_LIMITS, "admin"), Answers()
        asked = questions(600)[:3]
        async with client_of(member) as client:
            expected = [await ask(client, deployment.url, one, answers) for one in asked]

            async def is_answered(number: int) -> bool:
                try:
                    got = await ask(client, deployment.url, asked[number % 3], answers)
                except httpx.TransportError:
                    return False
                assert got == expected[number % 3]
                return True

            running = [asyncio.create_task(is_answered(number)) for number in range(24)]
            await until(lambda: is_running(client, deployment, 24), within_s=60)
            deployment.workers()[0].kill()
            deployment.engines()[0].kill()
            num_whole = sum(await asyncio.gather(*running))
            assert 0 < num_whole < 24
        async with client_of(member) as client:
            await until(lambda: holds_nothing(client, deployment), within_s=60)
        booked = await deployment.settled(member, 3 + 24)
        assert booked.requests == 3 + 24
        assert answers.num_tokens <= booked.completion_tokens <= 27 * 600
        print(f"of 24 streams {num_whole} went on, {answers}")


@pytest.mark.nightly
async def test_all_engines_are_replaced_and_no_request_fails(database: str) -> None:
    """`sluice fleet roll`, and what `list`, `drain` and `undrain` say of the real registry."""
    with Deployment(database, settings=settings(2)) as deployment:
        member, answers = deployment.member("rolling", NO_LIMITS, "admin"), Answers()
        asked = questions(300)
        async with client_of(member) as client:
            expected = [await ask(client, deployment.url, one, answers) for one in asked]
            is_over = asyncio.Event()

            async def chat(turn: int) -> None:
                while not is_over.is_set():
                    got = await ask(client, deployment.url, asked[turn % 5], answers)
                    assert got == expected[turn % 5]
                    turn += 1

            chats = [asyncio.create_task(chat(number)) for number in range(10)]
            await until(lambda: lists(deployment, "ready") == 2, within_s=60)
            before = {engine.pid for engine in deployment.engines()}
            said = await asyncio.to_thread(deployment.command, "fleet", "roll")
            assert "Replaced 2 engines." in said
            assert before.isdisjoint(engine.pid for engine in deployment.engines())
            assert lists(deployment, "ready") == 2
            engine_id = re.findall(r"(\S+:\d+:\d+):", said)[0]
            await asyncio.to_thread(deployment.command, "fleet", "drain", engine_id)
            assert lists(deployment, "drained") == 1
            await until(lambda: num_ready_is(client, deployment, 1), within_s=30)
            await asyncio.to_thread(deployment.command, "fleet", "undrain", engine_id)
            await until(lambda: num_ready_is(client, deployment, 2), within_s=30)
            is_over.set()
            await asyncio.gather(*chats)
            await until(lambda: holds_nothing(client, deployment), within_s=60)
        booked = await deployment.settled(member, answers.num_done)
        assert booked.completion_tokens == answers.num_tokens
        print(f"2 engines replaced, {answers}")


def lists(deployment: Deployment, state: str) -> int:
    """How many engines `sluice fleet list` says to be in a state."""
    return deployment.command("fleet", "list").split().count(state)


async def num_ready_is(client: httpx.AsyncClient, deployment: Deployment, number: int) -> bool:
    return await num_ready(client, deployment.url) == number


@pytest.mark.nightly
async def test_an_engine_that_stands_still_for_forty_seconds(database: str) -> None:
    """It is given up and killed after the hang timeout; the other goes on with its requests."""
    patient = settings(2) | {"server": {"engine_hang_timeout_s": 10.0}}
    with Deployment(database, settings=patient) as deployment:
        member, answers = deployment.member("waiting", NO_LIMITS, "admin"), Answers()
        asked = questions(1500)[:3]
        async with client_of(member) as client:
            expected = [await ask(client, deployment.url, one, answers) for one in asked]
            running = [
                asyncio.create_task(ask(client, deployment.url, asked[i % 3], answers))
                for i in range(12)
            ]
            await asyncio.sleep(1.0)
            stopped = deployment.engines()[0]
            stopped.send_signal(signal.SIGSTOP)
            await asyncio.sleep(40)
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.send_signal(signal.SIGCONT)
            assert await asyncio.gather(*running) == [expected[i % 3] for i in range(12)]
            await until(lambda: holds_nothing(client, deployment), within_s=60)
        booked = await deployment.settled(member, answers.num_done)
        assert booked.completion_tokens == answers.num_tokens
        print(f"an engine stood still, {answers}")
