"""However requests end: nobody holds anything then, and the ledger has every token."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from engine.errors import EngineDead
from gateway.errors import ApiError, InvalidApiKey
from gateway.generation.generation import Generation
from tenants.errors import QuotaExceeded
from tenants.limits import Limits
from tests.gateway.engine_double import Play, echo
from tests.gateway.parts import Parts, parts
from tests.gateway.raw_http import RawClient, post
from tests.gateway.serving import MODEL, Gateway, chat_body, encode, served_double, until
from tests.gateway.ws_client import ready
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore

ENDS = ("read", "cancel", "leave", "close at once", "engine dies", "key revoked", "killed")


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "length": draw(st.integers(0, 40)),
        "interval_s": draw(st.sampled_from([0.0, 0.001])),
        "n": draw(st.integers(1, 3)),
        "max_tokens": draw(st.integers(1, 60)),
        "end": draw(st.sampled_from(ENDS)),
        "after": draw(st.integers(0, 5)),
    }


async def run_one(here: Parts, wanted: dict[str, Any]) -> None:
    """From admission to its end, in whichever way."""
    play = Play(text="x" * wanted["length"], interval_s=wanted["interval_s"])
    here.double.script = lambda prompt: play
    try:
        generation = await here.begin(n=wanted["n"], max_tokens=wanted["max_tokens"])
    except (ApiError, QuotaExceeded, EngineDead):
        return  # refused: it must leave nothing either
    try:
        if wanted["end"] != "close at once":
            await read_until(here, generation, wanted["end"], wanted["after"])
    except ApiError:
        pass
    finally:
        generation.close()


async def read_until(here: Parts, generation: Generation, end: str, after: int) -> None:
    num_read = 0
    async with aclosing(generation.deltas()) as deltas:
        async for _ in deltas:
            num_read += 1
            if num_read != after:
                continue
            generations = here.services.generations
            match end:
                case "cancel":
                    generation.cancel()
                case "leave":
                    return
                case "engine dies":
                    here.double.crash()
                case "key revoked":
                    generations.fail_key(here.principal.key.public_id, InvalidApiKey("revoked"))
                case "killed":
                    generations.fail_request(generation.admitted.id, InvalidApiKey("killed"))


@settings(max_examples=40)
@given(st.lists(requests(), max_size=6), st.sampled_from([None, 3]), st.sampled_from([None, 60]))
def test_nothing_is_held(
    model_dir: Path,
    wanted: list[dict[str, Any]],
    max_concurrent: int | None,
    monthly_tokens: int | None,
) -> None:
    async def run(journal: Path) -> None:
        store = MemoryStore()
        async with parts(model_dir, journal, store=store) as here:
            services, tenant = here.services, here.principal.tenant
            limits = Limits(max_concurrent=max_concurrent, monthly_tokens=monthly_tokens)
            await store.put_limits(tenant.id, "tenant", tenant.id, limits)
            policies = tuple(await store.list_limits(tenant.id))
            here.principal = msgspec.structs.replace(here.principal, policies=policies)

            await asyncio.gather(*(run_one(here, one) for one in wanted))
            await services.generations.drain(30)

            assert not len(services.generations)
            assert services.quota.num_held == 0
            assert not await store.list_running()
            await until(lambda: not here.double.running)
            assert not services.engine.num_streams
            totals = await usage_totals(store, tenant.id)
            assert totals.completion_tokens == sum(here.double.generated.values())
            if monthly_tokens is not None:
                assert totals.completion_tokens <= monthly_tokens
            await until(lambda: services.engine.ready)
            here.principal = msgspec.structs.replace(here.principal, policies=())
            here.double.script = echo
            assert await here.answer(await here.begin("still there?")) == "You said: still there?"
        assert {task.get_name() for task in asyncio.all_tasks()} == {_own_name()}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
        assert list(Path(folder).iterdir()) == []


def _own_name() -> str:
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


# -- the same over connections

PLACES = ("answer", "stream", "resumable", "completion", "response", "background", "websocket")


@st.composite
def visits(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "place": draw(st.sampled_from(PLACES)),
        "begins_ms": draw(st.integers(0, 10)),
        "leaves_ms": draw(st.none() | st.integers(0, 40)),
        "length": draw(st.integers(0, 60)),
    }


async def visit(gateway: Gateway, wanted: dict[str, Any]) -> None:
    """Ask, and read to the end or leave in the middle without a word."""
    await asyncio.sleep(wanted["begins_ms"] / 1000)
    text = "x" * wanted["length"]
    with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, ConnectionClosed):
        async with asyncio.timeout(
            None if wanted["leaves_ms"] is None else wanted["leaves_ms"] / 1000
        ):
            if wanted["place"] == "websocket":
                async with ready(gateway) as client:
                    await client.chat("t", text)
                    await client.turn("t")
            else:
                await post_and_read(gateway, wanted["place"], text)


async def post_and_read(gateway: Gateway, place: str, text: str) -> None:
    response = {"model": MODEL, "input": text or " "}
    path, body = {
        "answer": ("/v1/chat/completions", chat_body(text)),
        "stream": ("/v1/chat/completions", chat_body(text, stream=True)),
        "resumable": ("/v1/chat/completions", chat_body(text, stream=True, resumable=True)),
        "completion": (
            "/v1/completions",
            {"model": MODEL, "prompt": text or " ", "max_tokens": 30},
        ),
        "response": ("/v1/responses", response | {"stream": True}),
        "background": ("/v1/responses", response | {"background": True}),
    }[place]
    client = await RawClient.connect(gateway)
    try:
        client.send(post(gateway, encode(body), path=path))
        await client.answer()
    finally:
        client.reset()


@settings(max_examples=15)
@given(st.lists(visits(), max_size=6), st.none() | st.integers(0, 40))
def test_nobody_who_comes_and_goes_leaves_anything(
    model_dir: Path, wanted: list[dict[str, Any]], crash_ms: int | None
) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        async with served_double(model_dir, resume_grace_s=0.02) as (gateway, double):
            services, tenant = gateway.app.state.services, gateway.tenant
            gateway.api_key = await gateway.key("chat", "responses")
            double.script = lambda prompt: Play(text="y" * len(prompt), interval_s=0.001)
            if crash_ms is not None:
                asyncio.get_running_loop().call_later(crash_ms / 1000, double.crash)
            await asyncio.gather(*(visit(gateway, one) for one in wanted))
            await services.generations.wait_idle(30)
            await services.generations.drain(30)
            await until(lambda: not services.streams._running)
            assert not len(services.generations)
            await until(lambda: not services.lifecycle.sessions)
            assert services.quota.num_held == 0
            assert not services.engine.num_streams
            totals = await usage_totals(gateway.store, tenant.id)
            assert totals.completion_tokens == sum(double.generated.values())
        await until(lambda: asyncio.all_tasks() == before)

    asyncio.run(run())
