from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from engine.text.tokenizer import Tokenizer
from tenants.errors import StoreUnavailable
from tenants.types import KeyRecord
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import get
from tests.gateway.serving import (
    MODEL,
    MOMENT_S,
    Gateway,
    double_client,
    make_config,
    served,
    served_double,
    until,
)
from tests.gateway.ws_client import connected, ready, text_of
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def test_a_turn(gateway: Gateway, double: EngineDouble) -> None:
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=gateway.api_key)
        assert await client.receive() == {
            "type": "ready",
            "models": [MODEL],
            "max_model_len": double.max_model_len,
            "max_turns": 16,
            "image_models": [],
            "max_message_bytes": 1024 * 1024,
        }
        await client.chat("t1", "hello")
        started, *deltas, done = await client.turn("t1")
    num_prompt = len(double.requests[0].prompt_token_ids)
    assert started["model"] == MODEL
    assert started["prompt_tokens"] == num_prompt
    assert text_of(deltas) == "You said: hello"
    assert all(set(delta) == {"type", "id", "seq", "content"} for delta in deltas)
    assert done["finish_reason"] == "stop"
    assert done["usage"]["completion_tokens"] == 15
    assert done["usage"]["prompt_tokens"] == num_prompt
    totals = await gateway.usage()
    assert totals.completion_tokens == 15


async def test_turns_run_at_once_and_share_the_socket(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text=prompt[-60:-40] * 5, interval_s=0.001)
    async with ready(gateway) as client:
        names = [f"turn-{i}" for i in range(10)]
        for name in names:
            await client.chat(name, name * 20)
        frames: dict[str, list[Any]] = {name: [] for name in names}
        ended = 0
        order = []
        while ended < len(names):
            frame = await client.receive()
            frames[frame["id"]].append(frame)
            order.append(frame["id"])
            ended += frame["type"] == "done"
        assert all(text_of(frames[name]) for name in names)
        assert order != sorted(order)  # interleaved
    assert (await gateway.usage(10)).requests == 10


async def test_the_model_may_be_named(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        await client.chat("a", model=MODEL)
        assert (await client.turn("a"))[-1]["type"] == "done"
        await client.chat("b", model="other")
        (error,) = await client.turn("b")
        assert error["status"] == 404
        assert error["error"]["code"] == "model_not_found"


async def test_tool_calls(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text=f"Well. {CALL}")
    async with ready(gateway) as client:
        await client.chat("t", tools=TOOLS)
        frames = await client.turn("t")
    pieces = [piece for frame in frames for piece in frame.get("tool_calls", ())]
    assert text_of(frames) == "Well."
    assert pieces[0]["function"] == {"name": "f", "arguments": ""}
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 1}'
    assert frames[-1]["finish_reason"] == "tool_calls"


async def test_cancel_keeps_what_was_said(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.005)
    async with ready(gateway) as client:
        await client.chat("t")
        await until(lambda: double.generated)
        await client.send(type="cancel", id="t")
        frames = await client.turn("t")
        (count,) = double.generated.values()
        assert frames[-1]["finish_reason"] == "cancelled"
        assert frames[-1]["usage"]["completion_tokens"] == count
        assert text_of(frames) == "x" * count
        # Crossing the end of a turn, or nobody's: no error.
        await client.send(type="cancel", id="t")
        await client.send(type="ping", data="still here")
        assert await client.receive() == {"type": "pong", "data": "still here"}
    assert (await gateway.usage()).completion_tokens == count


async def test_cancel_while_queued(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x", queued_s=60)
    async with ready(gateway) as client:
        await client.chat("t")
        assert (await client.receive())["type"] == "started"
        await client.send(type="cancel", id="t")
        done = await client.receive()
    assert (done["type"], done["finish_reason"]) == ("done", "cancelled")


async def test_an_id_is_free_again_after_its_turn(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        for _ in range(3):
            await client.chat("t")
            assert (await client.turn("t"))[-1]["type"] == "done"


async def test_errors_that_end_no_turn(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 5, interval_s=0.2)
    async with ready(gateway) as client:
        await client.chat("t")
        assert (await client.receive())["type"] == "started"
        assert (await client.receive())["type"] == "delta"
        cases: list[tuple[str, str | None, str]] = [
            ("{", None, "invalid_json"),
            ('{"type": "chat", "id": 3, "messages": []}', "messages", "invalid_value"),
            ('{"type": "dance"}', "type", "invalid_value"),
            ('{"type": "ping", "zz": 1}', "zz", "unknown_parameter"),
            ('{"type": "auth", "api_key": "x"}', None, "invalid_request"),
            (
                '{"type": "chat", "id": "t", "messages": [{"role": "user", "content": "x"}]}',
                "id",
                "duplicate_turn_id",
            ),
        ]
        for text, param, code in cases:
            await client.socket.send(text)
            frame = await client.receive()
            while frame["type"] == "delta":
                frame = await client.receive()
            assert frame["type"] == "error", text
            assert frame["id"] is None
            if param != "messages":  # the id is checked after or before: either is named
                assert (frame["error"]["param"], frame["error"]["code"]) == (param, code)
        while (frame := await client.receive())["type"] != "done":
            assert frame["type"] == "delta"


async def test_a_refused_turn_is_named(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        await client.chat("bad", temperature=-1)
        (error,) = await client.turn("bad")
        assert error["status"] == 400
        assert error["retryable"] is False
        assert error["error"]["param"] == "temperature"
        await client.chat("bad", stream=True)  # a field of Chat Completions alone
        (error,) = await client.turn("bad")
        assert error["error"]["param"] == "stream"
        await client.chat("spaces are no id")
        frame = await client.receive()
        assert frame["id"] is None
        assert frame["error"]["param"] == "id"


async def test_too_many_turns(model_dir: Path) -> None:
    async with served_double(model_dir, ws_max_turns=2) as (gateway, double):
        double.script = lambda prompt: Play(text="x", queued_s=0.5)
        async with ready(gateway) as client:
            for name in ("a", "b", "c"):
                await client.chat(name)
            frames = [await client.receive() for _ in range(3)]
    (error,) = [frame for frame in frames if frame["type"] == "error"]
    assert error["id"] == "c"
    assert error["error"]["code"] == "too_many_turns"
    assert error["status"] == 429


async def test_an_engine_crash_ends_the_turn_and_not_the_socket(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.005)
    async with ready(gateway) as client:
        await client.chat("t")
        await until(lambda: double.generated)
        double.crash()
        error = (await client.turn("t"))[-1]
        assert error["type"] == "error"
        assert error["status"] == 503
        assert error["retryable"] is True
        double.script = lambda prompt: Play(text="fine")
        await until(lambda: gateway.engine.ready)
        await client.chat("t")
        assert text_of(await client.turn("t")) == "fine"


async def test_leaving_aborts_all_turns(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(
        text="x" * 5000, interval_s=0.002, queued_s=60.0 if "wait" in prompt else 0.0
    )
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=gateway.api_key)
        await client.receive()
        for i in range(3):
            await client.chat(f"run-{i}", "go", max_tokens=2000)
            await client.chat(f"queue-{i}", "wait", max_tokens=2000)
        await until(lambda: len(double.running) == 6)
        left_at = asyncio.get_running_loop().time()
        client.socket.transport.abort()
        await until(lambda: not double.running)
        assert max(double.aborted.values()) - left_at < MOMENT_S
    totals = await gateway.usage(6)
    assert totals.completion_tokens == sum(double.generated.values())


# -- authentication


@pytest.mark.parametrize(
    "first",
    [
        '{"type": "auth", "api_key": "nonsense"}',
        '{"type": "auth", "api_key": "sk-slc-000000000000-' + "0" * 40 + '-000000"}',
        '{"type": "ping"}',
        "{",
    ],
)
async def test_bad_authentication_closes_4401(gateway: Gateway, first: str) -> None:
    async with connected(gateway) as client:
        await client.socket.send(first)
        frame = await client.receive()
        assert frame["type"] == "error"
        assert frame["status"] == 401
        assert frame["error"]["code"] == "invalid_api_key"
        assert await client.closed() == 4401


async def test_silence_closes_4401(model_dir: Path) -> None:
    async with (
        served_double(model_dir, ws_auth_timeout_s=0.1) as (gateway, _),
        connected(gateway) as client,
    ):
        assert await client.closed() == 4401


async def test_a_key_that_may_not_chat_closes_4403(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=await gateway.key("admin"))
        assert (await client.receive())["status"] == 403
        assert await client.closed() == 4403


class AwayStore(MemoryStore):
    """Knows nobody, because it does not answer."""

    async def find_key(self, public_id: str) -> KeyRecord | None:
        raise StoreUnavailable("gone")


async def test_keys_that_cannot_be_checked_are_not_called_wrong(model_dir: Path) -> None:
    config = make_config(model_dir)
    engine = double_client(config, EngineDouble(Tokenizer.load(model_dir)))
    async with served(config, engine, store=AwayStore()) as gateway:
        async with connected(gateway) as client:
            await client.send(type="auth", api_key=gateway.api_key)
            frame = await client.receive()
            assert (frame["status"], frame["retryable"]) == (503, True)
            assert frame["error"]["code"] == "store_unavailable"
            assert await client.closed() == 1013
        answer = await get(gateway, "/v1/models", authorization=f"Bearer {gateway.api_key}")
        assert answer.status == 503
        assert answer.headers["retry-after"]


async def test_a_revoked_key_takes_no_more_turns(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        public_id = gateway.api_key.split("-")[2]
        await gateway.store.revoke_key(public_id)
        gateway.authenticator.forget(public_id)
        await client.chat("t")
        assert (await client.receive())["error"]["code"] == "invalid_api_key"
        assert await client.closed() == 4401


# -- limits


async def test_binary_frames_close_1003(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        await client.socket.send(b"\x00")
        assert await client.closed() == 1003


async def test_a_message_too_big_closes_1009(model_dir: Path) -> None:
    async with (
        served_double(model_dir, ws_max_message_bytes=1000) as (gateway, _),
        ready(gateway) as client,
    ):
        await client.chat("t", "x" * 1000)
        assert await client.closed() == 1009


async def test_a_reader_that_stops_is_dropped_and_its_turns_end(model_dir: Path) -> None:
    limits: dict[str, Any] = {"send_timeout_s": 0.3, "ws_outbox_bytes": 4096}
    async with served_double(model_dir, max_model_len=10**6, **limits) as (gateway, double):
        double.script = lambda prompt: Play(text="y" * 500_000)
        async with connected(gateway, max_queue=1) as client:
            await client.send(type="auth", api_key=gateway.api_key)
            await client.receive()
            client.socket.transport.pause_reading()
            await client.chat("t")
            await until(lambda: double.generated)
            await until(lambda: not gateway.server.server_state.connections, within_s=60)
            client.socket.transport.abort()
        totals = await gateway.usage()
        assert totals.completion_tokens == sum(double.generated.values())


async def test_refusals_that_nobody_reads_are_bounded_in_sum(model_dir: Path) -> None:
    # On a busy machine the client takes long to fill the buffers: it must not be dropped before.
    limits: dict[str, Any] = {"ws_outbox_bytes": 1000, "send_timeout_s": 300.0}
    limits["ws_max_frames_per_s"] = 10**6
    async with served_double(model_dir, **limits) as (gateway, _):
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((gateway.host, gateway.port))
        async with connected(gateway, sock=narrow, max_queue=1) as client:
            await client.send(type="auth", api_key=gateway.api_key)
            await client.receive()
            (session,) = gateway.app.state.services.lifecycle.sessions
            client.socket.transport.pause_reading()
            unsent = session._outbox._unsent
            for number in range(100_000):
                try:
                    async with asyncio.timeout(1):
                        await client.chat(f"turn-{number}", unknown=1)
                except TimeoutError:
                    if unsent:  # The server reads no more; else it is only slow.
                        break
                assert sum(unsent.values()) < 2000
            assert unsent
            client.socket.transport.abort()


@pytest.mark.nightly
async def test_messages_in_crumbs_are_not_collected_for_ever(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionClosed):
                await client.socket.send(itertools.repeat("", 1_000_000))
            assert await client.closed() == 1008


async def test_a_slow_reader_gets_everything(model_dir: Path) -> None:
    async with served_double(model_dir, ws_outbox_bytes=200) as (gateway, double):
        double.script = lambda prompt: Play(text="0123456789" * 100)
        async with ready(gateway) as client:
            await client.chat("t")
            frames = [await client.receive()]
            while frames[-1]["type"] != "done":
                if len(frames) % 50 == 0:
                    await asyncio.sleep(0.02)
                frames.append(await client.receive())
    assert text_of(frames) == "0123456789" * 100


async def test_frames_hold_any_text(gateway: Gateway, double: EngineDouble) -> None:
    text = 'quotes " and \\ and \n, é, 👩‍🚀, \u2028 and </script>'
    double.script = lambda prompt: Play(text=text)
    async with ready(gateway) as client:
        await client.chat("t")
        assert text_of(await client.turn("t")) == text


async def test_messages_may_be_fragmented(gateway: Gateway) -> None:
    async with ready(gateway) as client:
        message = json.dumps(
            {"type": "chat", "id": "t", "messages": [{"role": "user", "content": "hello"}]}
        )
        await client.socket.send([message[:10], message[10:50], message[50:]])
        assert text_of(await client.turn("t")) == "You said: hello"


# -- going down


async def test_draining_lets_turns_end_and_takes_no_more(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 20, interval_s=0.05)
    async with ready(gateway) as idle, ready(gateway) as busy:
        await busy.chat("t")
        await until(lambda: double.generated)
        gateway.server.should_exit = True
        assert await idle.closed() == 1012
        await busy.chat("u")
        frames: list[Any] = []
        while not frames or frames[-1]["type"] != "done":
            frames.append(await busy.receive())
        assert text_of(frames) == "x" * 20
        (refused,) = [frame for frame in frames if frame["id"] == "u"]
        assert refused["error"]["code"] == "shutting_down"
        assert await busy.closed() == 1012


async def test_at_the_deadline_turns_end_with_an_error(model_dir: Path) -> None:
    async with served_double(model_dir, shutdown_timeout_s=0.2) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
        async with ready(gateway) as client:
            await client.chat("t")
            await until(lambda: double.generated)
            gateway.server.should_exit = True
            last = (await client.turn("t"))[-1]
            assert last["error"]["code"] == "shutting_down"
            assert await client.closed() == 1012
        totals = await gateway.usage()
        assert totals.completion_tokens == sum(double.generated.values())
