"""``kill -9`` of the engine during streams: errors, no clean ends, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import signal

import openai
import psutil
import pytest

from tests.gateway.raw_http import RawClient, events, get, post
from tests.gateway.serving import MODEL, Gateway, chat_body, encode, until
from tests.gateway.ws_client import ready, text_of

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

RESTART_S = 60.0
LONG = {"max_tokens": 1800, "ignore_eos": True}


async def test_kill_9_during_streams(gateway: Gateway) -> None:
    before = (await gateway.engine.fetch_stats()).generation_tokens
    raw = await RawClient.connect(gateway)
    raw.send(post(gateway, encode(chat_body("Hello!", stream=True, **LONG))))
    whole = await RawClient.connect(gateway)
    whole.send(post(gateway, encode(chat_body("Hello!", **LONG))))
    async with (
        gateway.openai() as client,
        gateway.openai(max_retries=20) as patient,
        ready(gateway) as socket,
    ):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello!"}],
            stream=True,
            max_tokens=1800,
            extra_body={"ignore_eos": True},
        )
        await socket.chat("t", "Hello!", **LONG)
        await anext(stream)
        await socket.receive()

        async def generating() -> bool:
            stats = await gateway.engine.fetch_stats()
            return stats.generation_tokens > before + 20

        await until(generating)
        pid = gateway.engine.info.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not gateway.engine.ready)
        # The package obeys retry-after: what is asked while the engine is away is answered in time.
        late = asyncio.create_task(
            patient.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello!"}], max_tokens=5
            )
        )

        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        assert (await get(gateway, "/livez")).status == 200
        assert (await get(gateway, "/readyz")).status == 503
        last = (await socket.turn("t"))[-1]
        assert last["type"] == "error"
        assert last["error"]["code"] == "engine_unavailable"

        answer = await raw.answer()
        assert b"[DONE]" not in answer.body
        assert events(answer.body)[-1]["error"]["code"] == "engine_unavailable"
        failed = await whole.answer()
        assert failed.status == 503
        assert failed.error["code"] == "engine_unavailable"

        async with asyncio.timeout(RESTART_S):
            assert (await late).choices[0].message.content
        await until(lambda: gateway.engine.ready, within_s=RESTART_S)
        assert gateway.engine.info.pid != pid
        assert not psutil.pid_exists(pid)
        assert (await get(gateway, "/readyz")).status == 200
        await socket.chat("t", "Hello!", temperature=0)
        assert text_of(await socket.turn("t"))
    await raw.close()
    await whole.close()
    totals = await gateway.usage(6)
    assert totals.requests == 6
