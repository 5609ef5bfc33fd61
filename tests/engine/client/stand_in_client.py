"""Clients of an engine that stands in for one, and what their tests do with them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil

from engine.client.client import EngineClient
from engine.client.stream import RequestStream
from engine.config import EngineConfig
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from tests.engine.stand_in import StandInProcess

ENDLESS = 1 << 30


def make_client(model: str = "ok", max_num_seqs: int = 256, **options: object) -> EngineClient:
    config = EngineConfig(model=model, max_num_seqs=max_num_seqs)
    return EngineClient(config, transport=StandInProcess, **options)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(**options: object) -> AsyncIterator[EngineClient]:
    client = make_client(**options)  # type: ignore[arg-type]
    await client.start()
    try:
        yield client
    finally:
        await client.close()
        assert not leftovers()


def engines() -> list[psutil.Process]:
    """Stand-ins that this process started; what else the suite runs is none of ours."""
    return [child for child in psutil.Process().children(recursive=True) if _is_stand_in(child)]


def _is_stand_in(process: psutil.Process) -> bool:
    try:
        return StandInProcess.module in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def leftovers() -> list[object]:
    """Engine processes of ours, and folders for their sockets."""
    return [*engines(), *Path(tempfile.gettempdir()).iterdir()]


def request(
    request_id: str,
    prompt: list[int] | None = None,
    max_tokens: int = ENDLESS,
    num_granted_tokens: int | None = None,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt or [1, 2, 3],
        params=SamplingParams(max_tokens=max_tokens),
        num_granted_tokens=num_granted_tokens,
    )


async def read(stream: RequestStream) -> list[int]:
    tokens: list[int] = []
    async for output in stream:
        tokens += output.new_token_ids
    return tokens


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for ``condition``."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (processes send no events)
            await asyncio.sleep(0.002)
