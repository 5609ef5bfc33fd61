"""A real gateway for the pages, over an engine that plays scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.text.tokenizer import Tokenizer
from gateway.config import Config
from tests.gateway.engine_double import EngineDouble
from tests.gateway.serving import Gateway, double_client, served

T = TypeVar("T")


@dataclass
class Site:
    """A gateway in a thread of its own."""

    gateway: Gateway
    double: EngineDouble
    loop: asyncio.AbstractEventLoop
    admin_key: str
    adapters: Path
    """Where adapters may be loaded from."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something where the gateway runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def serve(config: Config, model_dir: Path, adapters: Path) -> Iterator[Site]:
    ready, found = threading.Event(), list[Site]()
    stop: asyncio.Event | None = None

    async def run() -> None:
        nonlocal stop
        stop = asyncio.Event()
        double = EngineDouble(Tokenizer.load(model_dir))
        async with served(config, double_client(config, double)) as gateway:
            key = await gateway.key("admin")
            found.append(Site(gateway, double, asyncio.get_running_loop(), key, adapters))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        assert stop is not None
        found[0].loop.call_soon_threadsafe(stop.set)
        thread.join(60)
