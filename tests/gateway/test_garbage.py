"""What a request leaves behind: nothing that waits for Python's search for cycles.

That search is rare in a process that serves (``engine.garbage``), and an object that has outlived a
few of its rounds is looked at more rarely still. Streams last that long: a cycle among what belongs
to one is memory that grows for hours.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.bench.load import Load, Workload
from gateway.commands.database import Address
from gateway.errors import InvalidApiKey
from gateway.schemas.operation import Operation
from tests.gateway import shapes
from tests.gateway.engine_double import EngineDouble, Play, says
from tests.gateway.raw_http import RawClient, post
from tests.gateway.serving import MODEL, Gateway, chat_body, encode, until

OURS = ("gateway.", "engine.", "tenants.", "sse_starlette.", "uvicorn.")
CLIENTS = "gateway.bench."
NUM_REQUESTS = 9
NUM_CONNECTIONS = 3


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Counts the objects of ours that only the search for cycles finds."""
    found = Counter[str]()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = (f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
        found.update(
            name for name in names if name.startswith(OURS) and not name.startswith(CLIENTS)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"resumable": True},
        {"leaving": 1.0},
        {"uses_responses": True},
        {"uses_websocket": True},
        {"uses_websocket": True, "resumable": True},
    ],
    ids=lambda workload: "-".join(workload) or "plain",
)
async def test_streams_are_gone_when_they_have_ended(
    gateway: Gateway, double: EngineDouble, workload: dict[str, bool]
) -> None:
    double.script = lambda prompt: Play(text="x" * 40, interval_s=0.002)
    fields = Workload(max_tokens=20, **workload)

    async def streams() -> None:
        load = Load(Address(gateway.url, gateway.api_key), MODEL, fields)
        level = await load.level(NUM_CONNECTIONS, NUM_REQUESTS)
        assert (level.requests, level.errors) == (NUM_REQUESTS, 0)
        await until(lambda: not double.running)
        state = gateway.server.server_state
        await until(lambda: not state.connections and not state.tasks)
        await asyncio.sleep(0.1)  # settlements

    await streams()  # what is made once
    with garbage() as found:
        await streams()
    assert not found


WRONG: dict[str, dict[str, Any]] = {
    "field": {"foo": 1},
    "model": {"model": "nope"},
    "range": {"temperature": 9},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
    "grammar": {"structured_outputs": {"regex": "(a"}},
    "length": {"max_tokens": 10**9},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG.keys())
async def test_refused_requests_are_gone_when_they_are_answered(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    """Their bodies can be large, and a flood of them quick."""

    async def refused() -> None:
        client = await RawClient.connect(gateway)
        for _ in range(NUM_REQUESTS):
            client.send(post(gateway, encode(chat_body(**fields))))
            assert (await client.answer()).status in (400, 404)
        await client.close()
        await until(lambda: not gateway.server.server_state.connections)

    await refused()  # what is made once
    with garbage() as found:
        await refused()
    assert not found


UPGRADE = (
    b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n"
)
OPENED = UPGRADE % (b"/v1/chat", b"")
MASK = bytes(4)
KNOCKS: dict[str, tuple[bytes, bytes]] = {
    "gone": (OPENED, b""),
    "closed": (OPENED, b"\x88\x80" + MASK),
    "no authentication": (OPENED, b"\x81\x80" + MASK),
    "a flood": (OPENED, (b"\x89\x80" + MASK) * 100),
    "a wrong frame": (OPENED, b"\xff\xff" + MASK),
    "a bad key": (UPGRADE % (b"/v1/chat", b"authorization: Bearer x\r\n"), b""),
    "no such socket": (UPGRADE % (b"/v1/nothing", b""), b""),
    "no version": (OPENED.replace(b"sec-websocket-version: 13\r\n", b""), b""),
    "no socket": (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b""),
    "nonsense": (b"NONSENSE\r\n\r\n", b""),
}
"""What strangers send who come and go, before and after the first answer."""


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", KNOCKS.values(), ids=KNOCKS.keys())
async def test_strangers_are_gone_when_they_have_left(
    gateway: Gateway, sent: tuple[bytes, bytes]
) -> None:
    """They may come in thousands: all their cycles would be collected at once."""

    async def knock() -> None:
        for _ in range(NUM_REQUESTS):
            client = await RawClient.connect(gateway)
            client.send(sent[0])
            await client.reader.read(100)
            client.send(sent[1])
            await client.close()
        state = gateway.server.server_state
        await until(lambda: not state.connections and not state.tasks)

    await knock()  # what is made once
    with garbage() as found:
        await knock()
    assert not found


MAX_BODIES = 60
"""Of each route."""


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", shapes.WITH_BODY, ids=lambda operation: operation.path)
async def test_no_body_of_any_route_leaves_a_cycle(
    gateway: Gateway, double: EngineDouble, operation: Operation
) -> None:
    double.script = says("x")
    gateway.api_key = await gateway.key("chat", "responses")
    every = [*shapes.bodies(operation, 600, values={"text", "digits", "names", "depth"})]
    # Others of a kind, or of a place nearby, lead to the same answer.
    tried = every[:: -(-len(every) // MAX_BODIES)]

    async def refused() -> int:
        client = await RawClient.connect(gateway)
        num_refused = 0
        for body in tried:
            client.send(post(gateway, body.text, path=operation.path))
            num_refused += (await client.answer()).status in (400, 404)
        await client.close()
        await until(lambda: not gateway.server.server_state.connections)
        await asyncio.sleep(0.1)  # settlements
        return num_refused

    await refused()  # what is made once
    with garbage() as found:
        assert await refused() > len(tried) // 3
    assert not found


GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["crash", "error", "revoked"])
@pytest.mark.parametrize("begins", [True, False], ids=["begun", "waiting"])
async def test_failed_requests_are_gone_when_they_are_answered(
    gateway: Gateway, double: EngineDouble, begins: bool, ending: str
) -> None:
    """The error knows where it was raised, and so all that was at work there."""
    if ending == "error":
        play = Play(queued_s=0.2 if begins else 0.0, error="no")
    else:
        play = Play(text="x" * 500, queued_s=0.0 if begins else 600.0, interval_s=0.02)
    double.script = lambda prompt: play

    async def failed() -> None:
        double.generated.clear()
        key = await gateway.key("chat", "responses")
        clients = []
        for path, body in GENERATING.items():
            for fields in ({}, {"stream": True}, {"stream": True, "resumable": True}):
                clients.append(client := await RawClient.connect(gateway))
                client.send(post(gateway, encode(body | fields), path=path, key=key))
        if ending != "error":
            num = len(clients)
            await until(lambda: len(double.running) == num)
            if begins:
                await until(lambda: sum(each > 2 for each in double.generated.values()) == num)
        if ending == "crash":
            double.crash()
        elif ending == "revoked":
            public_id = key.split("-")[2]
            gateway.app.state.services.generations.fail_key(public_id, InvalidApiKey("Revoked."))
        for client in clients:
            answer = await client.answer()
            assert answer.status >= 400 or b"error" in answer.body, answer
            await client.close()
        await until(lambda: not gateway.server.server_state.connections)
        await until(lambda: not double.running)
        await asyncio.sleep(0.1)  # settlements

    await failed()
    with garbage() as found:
        await failed()
    assert not found
