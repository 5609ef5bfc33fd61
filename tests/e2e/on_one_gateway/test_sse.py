"""The event stream as plain HTTP clients see it: curl, and httpx line by line."""

from __future__ import annotations

import asyncio
import json
import shutil

import httpx
import pytest

from tests.gateway.raw_http import events
from tests.gateway.serving import Gateway, chat_body, until

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on the PATH")
async def test_curl(gateway: Gateway) -> None:
    process = await asyncio.create_subprocess_exec(
        "curl", "-sSN", f"{gateway.url}/v1/chat/completions",
        "-H", f"Authorization: Bearer {gateway.api_key}",
        "-H", "Content-Type: application/json",
        "-d", json.dumps(chat_body("Hello!", stream=True, temperature=0)),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    *chunks, done = events(output)
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_stopping_to_read_for_a_moment_loses_nothing(gateway: Gateway) -> None:
    body = chat_body("Hello!", stream=True, temperature=0, max_tokens=100, ignore_eos=True)
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    url = f"{gateway.url}/v1/chat/completions"
    texts = []
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        for pause_s in (0.0, 0.5):
            async with client.stream("POST", url, json=body) as response:
                lines = []
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 4:
                        await asyncio.sleep(pause_s)
            *chunks, done = events(("\n".join(lines) + "\n").encode())
            assert done == "[DONE]"
            texts.append("".join(c["choices"][0]["delta"].get("content") or "" for c in chunks))
    assert texts[0] == texts[1] != ""


async def test_everything_is_given_back(gateway: Gateway) -> None:
    async def idle() -> bool:
        stats = await gateway.engine.fetch_stats()
        return stats.num_running == 0 and stats.num_free_blocks == stats.num_total_blocks

    await until(idle)
    await until(lambda: not gateway.server.server_state.tasks)
