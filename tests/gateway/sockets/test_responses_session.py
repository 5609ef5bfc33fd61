"""The WebSocket mode of ``/v1/responses``, over real sockets and as OpenAI's package uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.sockets import responses_session
from gateway.sockets.responses_session import MAX_LANES, MAX_REMEMBERED
from tenants.limits import Limits
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import get
from tests.gateway.routes.test_responses import ORDER_OF_TEXT, types_of
from tests.gateway.serving import MODEL, Gateway, served_double, until

pytestmark = pytest.mark.asyncio

Event = dict[str, Any]


class Client:
    """Checks that a response's events are numbered without gaps."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def create(self, given: Any = "hi", **fields: Any) -> None:
        message = {"type": "response.create", "model": MODEL, "input": given, **fields}
        await self.socket.send(json.dumps(message))

    async def receive(self) -> Event:
        async with asyncio.timeout(30):
            event: Event = json.loads(await self.socket.recv())
        return event

    async def response(self) -> list[Event]:
        """All events of one response; no other may come in between."""
        events: list[Event] = []
        while not events or events[-1]["type"] not in (
            "response.completed",
            "response.incomplete",
            "response.failed",
        ):
            events.append(await self.receive())
            assert events[-1]["sequence_number"] == len(events) - 1, events[-1]
        return events

    async def refusal(self) -> Event:
        event = await self.receive()
        assert event["type"] == "error"
        return event


@asynccontextmanager
async def connected(gateway: Gateway, **options: Any) -> AsyncIterator[Client]:
    options.setdefault("additional_headers", {"authorization": f"Bearer {gateway.api_key}"})
    url = gateway.url.replace("http", "ws", 1) + options.pop("path", "/v1/responses")
    async with connect(url, compression=None, **options) as socket:
        yield Client(socket)


async def test_one_response(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        await client.create("hé")
        events = await client.response()
    assert types_of(events) == ORDER_OF_TEXT
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "You said: hé"
    assert all("stream_id" not in event for event in events)
    totals = await gateway.usage()
    assert totals.completion_tokens == len("You said: hé".encode())


async def test_the_package_can_connect(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="one two")
    async with gateway.openai() as client, client.responses.connect() as opened:
        connection: Any = opened  # its events are a union of sixty types
        await connection.response.create(model=MODEL, input="hi", stream_id="lane")
        kinds = []
        async for event in connection:
            kinds.append(event.type)
            assert event.stream_id == "lane"
            if event.type == "response.completed":
                break
        first = event.response
        assert first.output_text == "one two"
        await connection.response.create(model=MODEL, input="on", previous_response_id=first.id)
        while (event := await connection.recv()).type != "response.completed":
            pass
        assert event.response.previous_response_id == first.id
        await connection.response.create(model=MODEL, input="x", previous_response_id="resp_0")
        event = await connection.recv()
        assert event.type == "error"
        assert event.error.code == "previous_response_not_found"
        assert event.status == 400
    assert "one two" in double.prompt()


async def test_what_is_not_stored_is_continued_here_only(
    gateway: Gateway, double: EngineDouble
) -> None:
    async with connected(gateway) as client, connected(gateway) as other:
        await client.create("first", store=False)
        first = (await client.response())[-1]["response"]["id"]
        await client.create("second", store=False, previous_response_id=first)
        second = (await client.response())[-1]["response"]["id"]
        await client.create("third", previous_response_id=second)
        third = (await client.response())[-1]["response"]["id"]
        for text in ("first", "You said: first", "second", "You said: second", "third"):
            assert text in double.prompt()
        for previous in (first, second, third):
            await other.create("x", previous_response_id=previous)
            error = (await other.refusal())["error"]
            assert error["code"] == "previous_response_not_found"


@pytest.mark.parametrize("fails_at", ["admission", "engine"])
async def test_a_continuation_that_fails_ends_its_chain(
    gateway: Gateway, double: EngineDouble, fails_at: str
) -> None:
    """As Open Responses wants it: what is stored can still be continued."""
    async with connected(gateway) as client:
        for store in (False, True):
            await client.create("first", store=store)
            first = (await client.response())[-1]["response"]["id"]
            kept, wrong = double.script, {}
            if fails_at == "admission":
                wrong = {"temperature": -1}
                await client.create("x", previous_response_id=first, **wrong)
                await client.refusal()
            else:
                double.script = lambda _: Play(text="ab", error="broken", error_code="internal")
                await client.create("x", previous_response_id=first)
                assert (await client.response())[-1]["type"] == "response.failed"
                double.script = kept
            await client.create("x", previous_response_id=first)
            if store:
                await client.response()
            else:
                code = (await client.refusal())["error"]["code"]
                assert code == "previous_response_not_found"


async def test_the_oldest_are_forgotten_first(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        known = []
        for _ in range(MAX_REMEMBERED + 1):
            await client.create(store=False)
            known.append((await client.response())[-1]["response"]["id"])
        await client.create(previous_response_id=known[0])
        assert (await client.refusal())["error"]["param"] == "previous_response_id"
        await client.create(previous_response_id=known[1])
        await client.response()


async def test_input_without_an_answer(gateway: Gateway, double: EngineDouble) -> None:
    async with connected(gateway) as client:
        await client.create("remember", generate=False, instructions="Be kind.")
        events = await client.response()
        assert types_of(events) == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert events[-1]["response"]["output"] == []
        assert double.requests == []
        await client.create("now", previous_response_id=events[-1]["response"]["id"])
        await client.response()
    assert "remember" in double.prompt()


async def test_input_without_an_answer_is_a_request(gateway: Gateway) -> None:
    tenant = gateway.tenant.id
    await gateway.store.put_limits(tenant, "tenant", tenant, Limits(requests_per_minute=2))
    gateway.authenticator.forget()
    async with connected(gateway) as client:
        for _ in range(2):
            await client.create("remember", generate=False)
            assert (await client.response())[-1]["type"] == "response.completed"
        await client.create("remember", generate=False)
        assert (await client.refusal())["status"] == 429
    assert (await gateway.usage(0)).requests == 0


async def test_lanes_run_at_once_and_each_in_order(gateway: Gateway, double: EngineDouble) -> None:
    def script(prompt: str) -> Play:
        text = prompt.rsplit("user\n", 1)[1].partition("<")[0]
        return Play(text=text, queued_s=0.2 if text == "slow" else 0.0)

    double.script = script
    async with connected(gateway) as client:
        await client.create("slow", stream_id="a")
        await client.create("after", stream_id="a")
        await client.create("quick", stream_id="b")
        await client.create("plain")
        done: list[tuple[Any, str]] = []
        while len(done) < 4:
            event = await client.receive()
            if event["type"] == "response.completed":
                text = event["response"]["output"][0]["content"][0]["text"]
                done.append((event.get("stream_id"), text))
    assert set(done[:2]) == {("b", "quick"), (None, "plain")}
    assert done[2:] == [("a", "slow"), ("a", "after")]


async def test_cancelling(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    async with connected(gateway) as client:
        await client.create(stream_id="a")
        created = await client.receive()
        response_id = created["response"]["id"]
        cancel = json.dumps({"type": "response.cancel", "response_id": response_id})
        await client.socket.send(cancel)
        while (event := await client.receive())["type"] != "response.incomplete":
            pass
        assert event["response"]["status"] == "cancelled"
        await until(lambda: double.aborted)
        await client.socket.send(cancel)  # it crossed the end: nothing is said
        await client.socket.send(cancel.replace("resp_", "resp_0"))
        refusal = await client.refusal()
        assert (refusal["status"], refusal["error"]["param"]) == (404, "response_id")


async def test_who_leaves_stops_the_work(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    async with connected(gateway) as client:
        await client.create()
        await client.receive()
        await client.create()  # waits in the lane: never begun
    await until(lambda: double.aborted)
    totals = await gateway.usage()
    assert (totals.requests, len(double.requests)) == (1, 1)


async def test_limits(model_dir: Path) -> None:
    async with (
        served_double(model_dir, ws_max_turns=3) as (gateway, double),
        connected(gateway) as client,
    ):
        for number in range(MAX_LANES):
            await client.create(stream_id=f"lane{number}")
            assert (await client.response())[-1]["stream_id"] == f"lane{number}"
        await client.create(stream_id="another")
        refusal = await client.refusal()
        assert refusal["error"]["code"] == "websocket_stream_limit_reached"
        assert (refusal["status"], refusal["stream_id"]) == (429, "another")
        double.script = lambda prompt: Play(text="x", queued_s=60)
        for _ in range(4):
            await client.create()
        kinds = [(await client.receive())["type"] for _ in range(3)]
        assert sorted(kinds) == ["error", "response.created", "response.in_progress"]


async def test_an_old_connection_ends_when_its_work_has(
    model_dir: Path,
) -> None:
    async with (
        served_double(model_dir, ws_max_connection_s=0.2) as (gateway, double),
        connected(gateway) as client,
    ):
        double.script = lambda prompt: Play(text="x" * 30, interval_s=0.02)
        await client.create()
        events: list[Event] = []
        while not events or events[-1]["type"] != "error":
            events.append(await client.receive())
        assert events[-1]["error"]["code"] == "websocket_connection_limit_reached"
        await client.create(stream_id="late")
        while (event := await client.receive())["type"] != "response.completed":
            events.append(event)
        refused = [event for event in events if event.get("stream_id") == "late"]
        assert [event["type"] for event in refused] == ["error"]
        with pytest.raises(ConnectionClosed):
            await client.receive()
        assert client.socket.close_code == 1001


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "response.create", "model": MODEL}, "input"),
        ({"type": "response.create", "input": "x", "background": True}, "background"),
        ({"type": "response.create", "input": "x", "stream": False}, "stream"),
        ({"type": "response.create", "input": "x", "stream_id": "a b"}, "stream_id"),
        ({"type": "response.create", "input": "x", "truncation": "some"}, "truncation"),
        ({"type": "response.create", "input": "x", "odd": 1}, "odd"),
        ({"type": "response.steer"}, "type"),
        ([], None),
    ],
)
async def test_wrong_messages_are_refused_and_the_socket_goes_on(
    gateway: Gateway, message: object, param: str | None
) -> None:
    async with connected(gateway) as client:
        await client.socket.send(json.dumps(message))
        refusal = await client.refusal()
        assert (refusal["status"], refusal["error"]["param"]) == (400, param)
        await client.create(stream=True)
        await client.response()


async def test_ways_to_authenticate(gateway: Gateway) -> None:
    answer = await get(
        gateway, "/v1/ws-tickets", method="POST", authorization=f"Bearer {gateway.api_key}"
    )
    ticket = answer.json()["ticket"]
    protocols = ["sluice.v1", f"sluice.api-key.{gateway.api_key}"]
    for options in (
        {"path": f"/v1/responses?ticket={ticket}"},
        {"subprotocols": protocols},
        {},
    ):
        async with connected(gateway, additional_headers={}, **options) as client:
            if not options:
                auth = {"type": "auth", "api_key": gateway.api_key}
                await client.socket.send(json.dumps(auth))
            assert client.socket.subprotocol == ("sluice.v1" if "subprotocols" in options else None)
            await client.create()
            await client.response()
    for headers, status in (
        ({"authorization": "Bearer sk-wrong"}, 401),
        ({"authorization": f"Bearer {gateway.api_key}", "origin": "https://evil.example"}, 403),
    ):
        with pytest.raises(InvalidStatus) as caught:
            async with connected(gateway, additional_headers=headers):
                pass
        assert caught.value.response.status_code == status
    async with connected(gateway, additional_headers={}) as client:
        await client.create()  # before any authentication
        assert (await client.refusal())["status"] == 401
        with pytest.raises(ConnectionClosed):
            await client.receive()
        assert client.socket.close_code == 4401
    headers = {"authorization": f"Bearer {await gateway.key('usage')}"}
    async with connected(gateway, additional_headers=headers) as client:
        assert (await client.refusal())["status"] == 403
        await client.socket.wait_closed()
        assert client.socket.close_code == 4403


async def test_the_server_goes_down_after_the_last_response(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 20, interval_s=0.02)
    async with connected(gateway) as client:
        await client.create()
        await client.receive()
        gateway.server.should_exit = True
        while (event := await client.receive())["type"] != "response.completed":
            pass
        assert event["response"]["status"] == "completed"
        with pytest.raises(ConnectionClosed):
            await client.receive()
        assert client.socket.close_code == 1012


async def test_what_the_connections_of_a_tenant_remember_is_bounded(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_session, "MAX_TENANT_BYTES", 40_000)
    async with served_double(model_dir, max_model_len=40_000) as (gateway, _):
        await _remember_too_much(gateway)


async def _remember_too_much(gateway: Gateway) -> None:
    remembered = gateway.app.state.services.responses.remembered

    async def remember(client: Client) -> str:
        await client.create("x" * 10_000, generate=False, store=False)
        return str((await client.response())[-1]["response"]["id"])

    async def is_known(client: Client, name: str) -> bool:
        await client.create("now", previous_response_id=name, generate=False, store=False)
        while (event := await client.receive())["type"] not in ("error", "response.completed"):
            pass
        return bool(event["type"] == "response.completed")

    async with connected(gateway) as one:
        names = [await remember(one) for _ in range(2)]
        (num_bytes,) = remembered.values()
        assert 20_000 < num_bytes < 30_000
        async with connected(gateway) as other:
            others = [await remember(other) for _ in range(2)]
            assert not await is_known(other, others[0])  # It made room for the second.
            assert await is_known(one, names[0])
        await until(lambda: sum(remembered.values()) < 40_000)
    await until(lambda: not remembered)
