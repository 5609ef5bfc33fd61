"""Resumable streams over real connections that are cut, on the engine double."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tenants.keys import mint
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, RawClient, bodiless, chat, events, exchange, get, post
from tests.gateway.serving import MODEL, SECRETS, Gateway, chat_body, served_double, until
from tests.gateway.ws_client import ready, text_of

pytestmark = pytest.mark.asyncio

README = Path(__file__).parents[3] / "gateway" / "README.md"
TEXT = "".join(f"{number} ünd " for number in range(60))


def speak(double: EngineDouble, *, text: str = TEXT, interval_s: float = 0.0005) -> None:
    double.script = lambda prompt: Play(text=text, interval_s=interval_s)


def request(gateway: Gateway, **fields: Any) -> bytes:
    body = chat_body(stream=True, stream_options={"include_usage": True}, **fields)
    return post(gateway, json.dumps(body).encode(), x_sluice_resumable="1")


async def start(gateway: Gateway, data: bytes) -> tuple[RawClient, str]:
    client = await RawClient.connect(gateway)
    client.send(data)
    head = await client.head()
    assert head.status == 200
    stream_id = head.headers["x-sluice-stream-id"]
    assert len(stream_id) >= 32
    return client, stream_id


def again(gateway: Gateway, stream_id: str, body: bytes = b"") -> bytes:
    """The request of a client that has read ``body``."""
    num_events = body.count(b"\n\n")
    path = f"/v1/streams/{stream_id}?from={num_events}"
    return bodiless("GET", path, authorization=f"Bearer {gateway.api_key}")


async def read_some(client: RawClient, limit: int) -> tuple[bytes, bool]:
    """At most ``limit`` bytes and whether they are all; then the connection is cut."""
    body = b""
    while len(body) < limit and (chunk := await client.chunk()):
        body += chunk
    ended = len(body) < limit
    client.reset()
    return body[:limit], ended


def whole_events(body: bytes) -> bytes:
    return body[: body.rfind(b"\n\n") + 2] if b"\n\n" in body else b""


async def read_on(gateway: Gateway, stream_id: str, after: int | str = 0, **keys: str) -> Answer:
    key = keys.get("key", gateway.api_key)
    path = f"/v1/streams/{stream_id}?from={after}"
    return await get(gateway, path, authorization=f"Bearer {key}")


async def stop(gateway: Gateway, stream_id: str, *, key: str | None = None) -> Answer:
    token = f"Bearer {key or gateway.api_key}"
    return await get(gateway, f"/v1/streams/{stream_id}", method="DELETE", authorization=token)


async def stranger(gateway: Gateway) -> str:
    """A key of another tenant."""
    tenant, minted = await gateway.store.create_tenant("other"), mint(SECRETS.key_pepper)
    await gateway.store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name="theirs",
        scopes=["chat"],
    )
    return minted.text


def said(body: bytes) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events(body)
        if event != "[DONE]"
        for choice in event["choices"]
    )


async def test_cut_at_a_hundred_points_nothing_is_lost(
    gateway: Gateway, double: EngineDouble
) -> None:
    speak(double)
    luck = random.Random(7)
    cuts, rounds = 0, 0
    while cuts < 100:
        rounds += 1
        client, stream_id = await start(gateway, request(gateway))
        body, ended = b"", False
        while not ended:
            some, ended = await read_some(client, luck.randrange(8_000))
            cuts += not ended
            body += whole_events(some)
            if not ended:
                client, _ = await start(gateway, again(gateway, stream_id, body))
        uncut = await read_on(gateway, stream_id)
        assert body == uncut.body
        assert said(body) == TEXT
        assert events(body)[-1] == "[DONE]"
    assert double.aborted == {}
    totals = await gateway.usage(rounds)
    assert totals.requests == rounds  # one row for each, however often it was cut
    assert totals.completion_tokens == rounds * len(TEXT.encode())


async def test_the_openai_package_can_ask_for_it(gateway: Gateway, double: EngineDouble) -> None:
    speak(double)
    async with gateway.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_body={"resumable": True},
        )
        stream_id = raw.headers["x-sluice-stream-id"]
        chunks = [chunk async for chunk in raw.parse()]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert said((await read_on(gateway, stream_id)).body) == TEXT


async def test_a_cut_completion_is_read_on_too(gateway: Gateway, double: EngineDouble) -> None:
    speak(double, interval_s=0.001)
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1000, "stream": True, "resumable": True}
    data = post(gateway, json.dumps(body).encode()).replace(b"/chat/completions", b"/completions")
    client, stream_id = await start(gateway, data)
    begun, _ = await read_some(client, 1000)
    begun = whole_events(begun)
    rest = await read_on(gateway, stream_id, begun.count(b"\n\n"))
    texts = [event["choices"][0]["text"] for event in events(begun + rest.body)[:-1]]
    assert "".join(texts) == TEXT


async def test_two_readers_at_once(gateway: Gateway, double: EngineDouble) -> None:
    speak(double)
    client, stream_id = await start(gateway, request(gateway))
    first, second = await asyncio.gather(read_some(client, 10**7), read_on(gateway, stream_id, 0))
    assert first[0] == second.body
    assert second.headers["x-sluice-stream-id"] == stream_id
    assert second.headers["cache-control"] == "no-cache"


async def test_nobody_comes_back_in_time(model_dir: Path) -> None:
    async with served_double(model_dir, resume_grace_s=0.6) as (gateway, double):
        speak(double, text="x" * 1000, interval_s=0.01)
        client, stream_id = await start(gateway, request(gateway))
        await read_some(client, 600)
        await asyncio.sleep(0.1)
        assert double.running
        back, _ = await start(gateway, again(gateway, stream_id))
        await asyncio.sleep(0.7)
        assert double.running  # somebody reads
        back.reset()
        await until(lambda: double.aborted)
        totals = await gateway.usage()
        assert (totals.requests, totals.completion_tokens) == (1, *double.generated.values())
        left = events((await read_on(gateway, stream_id)).body)
        assert left[-1]["error"]["code"] == "stream_abandoned"


async def test_a_stream_not_opened_as_resumable_ends_with_its_connection(
    gateway: Gateway, double: EngineDouble
) -> None:
    speak(double, interval_s=0.01)
    client = await RawClient.connect(gateway)
    client.send(request(gateway).replace(b"x-sluice-resumable: 1", b"x-sluice-resumable: 0"))
    assert "x-sluice-stream-id" not in (await client.head()).headers
    client.reset()
    await until(lambda: double.aborted)


async def test_stopping(gateway: Gateway, double: EngineDouble) -> None:
    speak(double, interval_s=0.01)
    client, stream_id = await start(gateway, request(gateway))
    await client.chunk()
    for _ in range(2):
        assert (await stop(gateway, stream_id)).status == 204
    await until(lambda: double.aborted)
    body = (await read_on(gateway, stream_id)).body
    assert TEXT.startswith(said(body))
    assert events(body)[-3]["choices"][0]["finish_reason"] == "stop"
    assert events(body)[-1] == "[DONE]"
    assert (await stop(gateway, stream_id)).status == 204  # of a stream that has ended
    assert (await read_on(gateway, stream_id)).body == body
    totals = await gateway.usage()
    assert (totals.requests, totals.completion_tokens) == (1, *double.generated.values())
    client.reset()


async def test_ids_are_nothing_to_another_tenant(gateway: Gateway, double: EngineDouble) -> None:
    speak(double, interval_s=0.01)
    client, stream_id = await start(gateway, request(gateway))
    key = await stranger(gateway)
    for wrong_id, who in ((stream_id, key), ("stream_unknown", gateway.api_key)):
        for answer in (
            await read_on(gateway, wrong_id, key=who),
            await stop(gateway, wrong_id, key=who),
        ):
            assert (answer.status, answer.error["code"]) == (404, "stream_not_found")
    assert double.running
    assert (await stop(gateway, stream_id)).status == 204
    client.reset()


async def test_wrong_positions(gateway: Gateway, double: EngineDouble) -> None:
    speak(double, text="x")
    client, stream_id = await start(gateway, request(gateway))
    client.reset()
    await until(lambda: not double.running)
    for after in ("-1", "x", "", "²", "9" * 30):
        answer = await read_on(gateway, stream_id, after.replace("²", "%C2%B2"))
        assert (answer.status, answer.error["param"]) == (400, "from")
    answer = await read_on(gateway, stream_id, 1000)
    assert (answer.status, answer.error["code"]) == (400, "invalid_stream_position")


async def test_dropped_events_are_gone_and_not_skipped(model_dir: Path) -> None:
    async with served_double(model_dir, max_stream_log_bytes=4000) as (gateway, double):
        speak(double)
        client, stream_id = await start(gateway, request(gateway))
        client.reset()
        await until(lambda: not double.running)
        answer = await read_on(gateway, stream_id)
        assert (answer.status, answer.error["code"]) == (410, "stream_position_gone")


async def test_heartbeats_are_events_like_any_other(model_dir: Path) -> None:
    async with served_double(model_dir, heartbeat_s=0.1) as (gateway, double):
        double.script = lambda prompt: Play(text="ab", queued_s=0.5)
        client, stream_id = await start(gateway, request(gateway))
        body, _ = await read_some(client, 10**6)
        assert (await read_on(gateway, stream_id)).body == body
        assert len(events(body)) >= 1 + 2 + 2 + 3


@pytest.mark.skipif(shutil.which("curl") is None, reason="the example is curl's")
async def test_the_example_of_the_readme(
    gateway: Gateway, double: EngineDouble, tmp_path: Path
) -> None:
    speak(double, interval_s=0.004)
    example = re.search(r"```bash\n(.*?x-sluice-stream-id.*?)```", README.read_text(), re.DOTALL)
    assert example is not None
    script = example[1].replace('"demo"', json.dumps(MODEL)).replace("time 3", "time 0.6")
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "URL": gateway.url, "KEY": gateway.api_key},
    )
    assert await shell.wait() == 0
    begun = (tmp_path / "begun").read_bytes()
    assert b"[DONE]" not in begun
    *said, done = events(whole_events(begun) + (tmp_path / "rest").read_bytes())
    assert done == "[DONE]"
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in said) == TEXT


async def test_only_streams_are_resumable(gateway: Gateway) -> None:
    answer = await chat(gateway, chat_body(resumable=True))
    assert (answer.status, answer.error["param"]) == (400, "resumable")
    data = json.dumps(chat_body()).encode()
    answer = await exchange(gateway, post(gateway, data, x_sluice_resumable="1"))
    assert (answer.status, answer.error["param"]) == (400, "x-sluice-resumable")
    answer = await exchange(gateway, post(gateway, data, x_sluice_resumable="yes"))
    assert (answer.status, answer.error["param"]) == (400, "x-sluice-resumable")


async def test_a_failed_stream_keeps_its_error(gateway: Gateway, double: EngineDouble) -> None:
    speak(double, interval_s=0.005)
    client, stream_id = await start(gateway, request(gateway))
    begun = await client.chunk()
    double.crash()
    rest, _ = await read_some(client, 10**7)
    body = begun + rest
    assert events(body)[-1]["error"]["code"] == "engine_unavailable"
    assert (await read_on(gateway, stream_id)).body == body


async def test_a_turn_is_read_on_after_any_frame(gateway: Gateway, double: EngineDouble) -> None:
    speak(double)
    luck = random.Random(3)
    async with ready(gateway) as client:
        await client.chat("t", resumable=True)
        started = await client.receive()
        frames = [started, *[await client.receive() for _ in range(5)]]
    while frames[-1]["type"] != "done":
        async with ready(gateway) as client:
            await client.resume("t", started["stream_id"], frames[-1]["seq"])
            for _ in range(luck.randrange(1, 120)):
                frames.append(await client.receive())
                if frames[-1]["type"] == "done":
                    break
    assert text_of(frames) == TEXT
    async with ready(gateway) as client:
        await client.resume("t", started["stream_id"], -1)
        assert await client.turn("t") == frames
    assert (await gateway.usage()).requests == 1
    assert double.aborted == {}


async def test_a_turn_is_stopped_from_another_socket(
    gateway: Gateway, double: EngineDouble
) -> None:
    speak(double, interval_s=0.01)
    async with ready(gateway) as client, ready(gateway) as other:
        await client.chat("t", resumable=True)
        started = await client.receive()
        await other.resume("t", started["stream_id"], 0)
        await other.send(type="cancel", id="t")
        assert (await client.turn("t"))[-1]["finish_reason"] == "cancelled"
        assert (await other.turn("t"))[-1]["finish_reason"] == "cancelled"
    assert double.aborted


async def test_wrong_resumes_end_their_own_turn_only(
    gateway: Gateway, double: EngineDouble
) -> None:
    speak(double, text="x")
    sse, sse_id = await start(gateway, request(gateway))
    sse.reset()
    async with ready(gateway) as client:
        await client.chat("t", resumable=True)
        stream_id = (await client.turn("t"))[0]["stream_id"]
        for turn_id, wrong_id, last_seq, code, param in (
            ("t", "stream_unknown", -1, "stream_not_found", None),
            ("t", sse_id, -1, "stream_not_found", None),
            ("u", stream_id, -1, "invalid_request", "id"),
            ("t", stream_id, 2**53 - 2, "invalid_stream_position", None),
            ("t", stream_id, 99, "invalid_stream_position", None),
            ("t", stream_id, 2, "stream_ended", None),
        ):
            await client.resume(turn_id, wrong_id, last_seq)
            (frame,) = await client.turn(turn_id)
            assert (frame["error"]["code"], frame["error"]["param"]) == (code, param)
        for last_seq in (-2, 2**53, 2**63, 10**40):
            await client.send(type="resume", id="t", stream_id=stream_id, last_seq=last_seq)
            (frame,) = await client.turn("t")
            assert (frame["error"]["code"], frame["error"]["param"]) == (
                "invalid_value",
                "last_seq",
            )
    assert (await read_on(gateway, stream_id)).status == 404


async def test_too_many_streams_are_a_real_429(model_dir: Path) -> None:
    async with served_double(model_dir, max_tenant_stream_log_bytes=1500) as (gateway, double):
        speak(double, interval_s=0.02)
        client, stream_id = await start(gateway, request(gateway))
        answer = await exchange(gateway, request(gateway))
        assert (answer.status, answer.error["code"]) == (429, "too_many_streams")
        await until(lambda: len(double.aborted) == 1)
        assert (await stop(gateway, stream_id)).status == 204
        client.reset()
