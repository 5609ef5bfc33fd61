"""Loading and unloading adapters, as the engine's client sees it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from engine.errors import AdapterLoadError, EngineDead
from engine.messages import AdapterRef
from tests.engine.client.stand_in_client import ENDLESS, make_client, request, running

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.mark.asyncio
async def test_adapters_are_loaded_beside_running_requests() -> None:
    async with running() as client:
        stream = client.submit(request("a", [1], ENDLESS))
        answers = await asyncio.gather(
            *(client.adapters.load(AdapterRef(name=n, path=n)) for n in ("late", "good"))
        )
        assert [(answer.digest, answer.rank) for answer in answers] == [("digest", 8)] * 2
        with pytest.raises(AdapterLoadError, match="bad one does not fit"):
            await client.adapters.load(AdapterRef(name="x", path="bad one"))
        await client.adapters.unload("good")
        assert await anext(stream)
        stream.close()


@pytest.mark.asyncio
async def test_the_engines_death_ends_the_loading_of_an_adapter() -> None:
    async with running() as client:
        loading = asyncio.create_task(client.adapters.load(AdapterRef(name="n", path="never")))
        await asyncio.sleep(0)
        os.kill(client.info.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            await loading
        with pytest.raises(EngineDead):
            await client.adapters.unload("n")


@pytest.mark.asyncio
async def test_closing_ends_the_loading_of_an_adapter() -> None:
    client = make_client()
    await client.start()
    loading = asyncio.create_task(client.adapters.load(AdapterRef(name="n", path="never")))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineDead, match="shut down"):
        await loading
