"""Lines between workers, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.peers.peers import Peers
from gateway.peers.routed_ids import new_worker_id
from gateway.peers.wire import Keys, derive_keys
from gateway.streams.archive import StreamArchive
from tenants.shared import SharedState
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore

KEYS = derive_keys(b"what all workers know")


def make_peers(
    shared: SharedState | None = None, *, keys: Keys = KEYS, host: str | None = None
) -> Peers:
    """Without ``shared``: of a worker that is alone."""
    return Peers(shared or MemoryStore().shared, worker_id=new_worker_id(), keys=keys, host=host)


def make_archive(shared: SharedState | None = None, *, max_bytes: int = 10**7) -> StreamArchive:
    return StreamArchive(shared or MemoryStore().shared, max_tenant_bytes=max_bytes)


@asynccontextmanager
async def listening(peers: Peers, shared: SharedState) -> AsyncIterator[Peers]:
    """Until the block ends; then it has left."""
    running = asyncio.create_task(peers.run())

    async def is_known() -> bool:
        return await shared.find_worker(peers.worker_id) is not None

    await until(is_known)
    try:
        yield peers
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def overheard(
    port: int, seen: list[bytes], passes: Callable[[], bool] = lambda: True
) -> AsyncIterator[int]:
    """A port between a caller and the worker at ``port``; what comes to it is noted, and lost
    unless it ``passes``."""

    tasks: list[asyncio.Task[None]] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        for source, to in ((reader, there[1]), (there[0], writer)):
            tasks.append(asyncio.create_task(pipe(source, to)))

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(4096):
                seen.append(data)
                if passes():
                    writer.write(data)
        finally:
            writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
