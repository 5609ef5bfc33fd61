"""Ranks as processes: the same tokens, and nothing left behind however one of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from engine.client.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineDead
from engine.llm import LLM
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.text.tokenizer import Tokenizer
from tests.engine import toys

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=4000, ignore_eos=True)
ENDS_WITHIN_S = 5.0


SIZES = [(2, 1), (1, 2), (2, 2)]
"""``tensor_parallel_size`` and ``pipeline_parallel_size``."""


def config(folder: Path, sizes: tuple[int, int]) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        num_gpu_blocks_override=512,
        num_threads=1,
        tensor_parallel_size=sizes[0],
        pipeline_parallel_size=sizes[1],
    )


def prompted(request_id: str, params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(request_id=request_id, prompt_token_ids=PROMPT, params=params)


def children() -> set[psutil.Process]:
    """Without those of a PostgreSQL that this process may have started, whose number depends on who
    else runs tests."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() != "postgres":
                found.add(process)
    return found


def processes_of(client: EngineClient) -> dict[int, psutil.Process]:
    """By rank."""
    assert client.info is not None
    engine = psutil.Process(client.info.pid)
    children = [child for child in engine.children() if "startup.rank" in " ".join(child.cmdline())]
    return {0: engine, **dict(enumerate(children, 1))}


async def gone(processes: dict[int, psutil.Process]) -> None:
    async with asyncio.timeout(ENDS_WITHIN_S):
        while any(  # noqa: ASYNC110
            process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            for process in processes.values()
        ):
            await asyncio.sleep(0.02)


async def lose(
    tmp_path: Path, sizes: tuple[int, int], rank: int, how: signal.Signals, *, busy: bool
) -> None:
    """Start an engine of several ranks, compare its tokens, lose one, and look for what is left."""
    folder, before = toys.write_llama(tmp_path, max_position_embeddings=4096), children()
    client = EngineClient(config(folder, sizes))
    await client.start()
    try:
        found = []
        async for output in client.submit(prompted("a", GREEDY)):
            found += output.new_token_ids
        (alone,) = LLM(folder, num_gpu_blocks_override=64, num_threads=1).generate(
            {"prompt_token_ids": PROMPT}, GREEDY
        )
        assert found == alone.outputs[0].token_ids
        choice = StructuredOutputs(choice=("the cat", "naïve"))
        params = SamplingParams(max_tokens=40, structured_outputs=choice)
        chosen: list[int] = []
        async for output in client.submit(prompted("c", params)):
            chosen += output.new_token_ids
        assert Tokenizer.load(folder).decode(chosen) in ("the cat", "naïve")
        processes = processes_of(client)
        assert len(processes) == sizes[0] * sizes[1]
        stream = client.submit(prompted("b", ENDLESS)) if busy else None
        if stream is not None:
            await anext(stream)
        os.kill(processes[rank].pid, how)
        if stream is not None:
            with pytest.raises(EngineDead):
                async for _ in stream:
                    pass
        await gone(processes)
    finally:
        await client.close()
    assert children() <= before


@pytest.mark.asyncio
@pytest.mark.parametrize("sizes", SIZES[:2])
async def test_a_rank_is_killed_while_it_decodes(sizes: tuple[int, int], tmp_path: Path) -> None:
    await lose(tmp_path, sizes, 1, signal.SIGKILL, busy=True)


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("sizes", "rank"),
    [(sizes, rank) for sizes in SIZES for rank in range(sizes[0] * sizes[1])],
)
async def test_any_rank_is_lost(
    sizes: tuple[int, int], rank: int, how: signal.Signals, busy: bool, tmp_path: Path
) -> None:
    if (rank, how) == (0, signal.SIGSTOP):
        pytest.skip("the client sees to an engine that hangs, with its own patience")
    await lose(tmp_path, sizes, rank, how, busy=busy)


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("after_s", [0.3, 2.0, 4.0])
@pytest.mark.parametrize("sizes", SIZES[:2])
def test_a_rank_is_lost_while_it_loads(
    sizes: tuple[int, int], after_s: float, rank: int, how: signal.Signals, tmp_path: Path
) -> None:
    """Whatever it is doing at that time."""

    async def start() -> None:
        client = EngineClient(config(folder, sizes), start_timeout_s=30.0)
        starting = asyncio.create_task(client.start())
        try:
            await asyncio.sleep(after_s)
            processes = sorted(children() - before, key=lambda process: process.pid)
            others = [p for p in processes if "startup.rank" in " ".join(p.cmdline())]
            chosen = others if rank else [p for p in processes if p not in others]
            if not chosen or (rank, how) == (0, signal.SIGSTOP):
                return
            chosen[0].send_signal(how)
            begun = time.monotonic()
            if not starting.done():
                with pytest.raises(EngineDead):
                    await starting
                assert time.monotonic() - begun < ENDS_WITHIN_S + 5
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await client.close()

    folder, before = toys.write_llama(tmp_path), children()
    asyncio.run(start())
    assert children() <= before
