"""The examples of the READMEs, run as they are printed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.examples import ROOT, example
from tests.gateway.raw_http import events
from tests.gateway.serving import MODEL, Gateway

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]


async def run(*command: str, cwd: Path, **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_the_openai_package(gateway: Gateway, tmp_path: Path) -> None:
    script = example("README.md", "python", "from openai import")
    for stands_for, what in (
        ("http://127.0.0.1:8000", gateway.url),
        ("sk-slc-…", gateway.api_key),
        ('model="demo"', f'model="{MODEL}"'),
    ):
        assert stands_for in script
        script = script.replace(stands_for, what)
    assert "fox" in await run(sys.executable, "-c", script, cwd=tmp_path)


async def test_the_engine_without_the_server() -> None:
    script = example("README.md", "python", "from engine.llm import")
    assert await run(sys.executable, "-c", script, cwd=ROOT) == "7 * 8 = 56.\n"


async def test_the_websocket(gateway: Gateway, tmp_path: Path) -> None:
    script = example("gateway/README.md", "python", "websockets")
    env = {"URL": gateway.url, "KEY": gateway.api_key}
    assert "fox" in await run(sys.executable, "-c", script, cwd=tmp_path, **env)


async def test_resuming_a_stream(gateway: Gateway, tmp_path: Path) -> None:
    """What was read and the rest are the whole stream, byte for byte."""
    script = example("gateway/README.md", "bash", "/v1/streams").replace('"demo"', f'"{MODEL}"')
    await run("bash", "-c", script, cwd=tmp_path, URL=gateway.url, KEY=gateway.api_key)
    begun, rest = ((tmp_path / name).read_bytes() for name in ("begun", "rest"))
    assert len(begun) == 1000
    read, end, _ = begun.rpartition(b"\n\n")
    stream = (tmp_path / "headers").read_text().partition("x-sluice-stream-id: ")[2].split()[0]
    async with httpx.AsyncClient() as client:
        whole = await client.get(
            f"{gateway.url}/v1/streams/{stream}?from=0",
            headers={"authorization": f"Bearer {gateway.api_key}"},
        )
    assert read + end + rest == whole.content
    assert read
    *chunks, done = events(whole.content)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert done == "[DONE]"
