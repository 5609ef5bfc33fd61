"""``/v1/chat`` with the real engine and PostgreSQL, from the ``websockets`` package."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.gateway.serving import Gateway, until
from tests.gateway.ws_client import ready, text_of

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]


async def test_a_conversation_its_ledger_and_its_cache(gateway: Gateway) -> None:
    before = (await gateway.engine.fetch_stats()).generation_tokens
    async with ready(gateway) as client:
        # The answer to a first question goes back as history with the second.
        messages: list[Any] = [{"role": "user", "content": "My name is Anna."}]
        usage = []
        for turn, question in (("t1", "What is my name?"), ("t2", "Tell me a short story.")):
            await client.send(type="chat", id=turn, messages=messages, temperature=0)
            frames = await client.turn(turn)
            assert frames[-1]["type"] == "done"
            usage.append(frames[-1]["usage"])
            messages += [
                {"role": "assistant", "content": text_of(frames)},
                {"role": "user", "content": question},
            ]
        assert usage[1]["prompt_tokens_details"]["cached_tokens"] > 0

        # Several at once, one of them cancelled: its blocks are free at once.
        for i in range(4):
            await client.chat(f"many-{i}", "Hello!", max_tokens=300, ignore_eos=True)

        async def running() -> bool:
            return (await gateway.engine.fetch_stats()).num_running == 4

        await until(running)
        await client.send(type="cancel", id="many-2")
        ended: dict[str, Any] = {}
        while len(ended) < 4:
            frame = await client.receive(within_s=60)
            if frame["type"] in ("done", "error"):
                ended[frame["id"]] = frame
        reasons = {turn: frame["finish_reason"] for turn, frame in ended.items()}
        assert reasons == {
            "many-0": "length",
            "many-1": "length",
            "many-2": "cancelled",
            "many-3": "length",
        }
        usage += [frame["usage"] for frame in ended.values()]

    totals = await gateway.usage(6)
    assert totals.requests == 6
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(totals, name) == sum(one[name] for one in usage)
    stats = await gateway.engine.fetch_stats()
    assert stats.num_free_blocks == stats.num_total_blocks
    assert stats.generation_tokens - before == totals.completion_tokens

    # The synchronous client of the package, from a thread, as a script would use it.
    def ask() -> str:
        with connect(gateway.ws_url) as socket:
            socket.send(json.dumps({"type": "auth", "api_key": gateway.api_key}))
            assert json.loads(socket.recv())["type"] == "ready"
            question = [{"role": "user", "content": "What is 2 + 3?"}]
            socket.send(
                json.dumps({"type": "chat", "id": "q", "messages": question, "temperature": 0})
            )
            text = ""
            while (frame := json.loads(socket.recv()))["type"] != "done":
                text += frame.get("content", "")
            return text

    assert "5" in await asyncio.to_thread(ask)
