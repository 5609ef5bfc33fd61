"""Lines between workers, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.peers.peers import Peers
from gateway.peers.routed_ids import new_worker_id
from gateway.streams.archive import StreamArchive
from tenants.memory import MemoryStore
from tenants.shared import SharedState
from tests.gateway.serving import until

SECRET = b"what all workers know"


def make_peers(
    shared: SharedState | None = None, *, secret: bytes = SECRET, host: str | None = None
) -> Peers:
    """Without ``shared``: of a worker that is alone."""
    return Peers(
        shared or MemoryStore().shared, worker_id=new_worker_id(), secret=secret, host=host
    )


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
