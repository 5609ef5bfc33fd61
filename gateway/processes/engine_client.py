"""Makes the engine's client from the settings."""

from __future__ import annotations

from collections.abc import Callable

from engine.client.client import EngineClient
from engine.client.transport import EngineProcess, MakeTransport
from engine.config import MAX_DEFAULT_NUM_SEQS
from engine.messages import LoadProgress
from gateway.config import Config


def make_engine_client(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    transport: MakeTransport = EngineProcess,
) -> EngineClient:
    """A client that has not been started. ``transport``: by default it spawns an engine process of
    its own."""
    server, engine = config.server, config.engine
    limit = engine.max_num_queued_reqs
    return EngineClient(
        engine,
        on_progress=on_progress,
        # The engine counts requests that wait for admission. The client cannot tell those from
        # admitted ones without an output, so its limit is higher by the size of a batch.
        max_num_queued_reqs=None
        if limit is None
        else limit + (engine.max_num_seqs or MAX_DEFAULT_NUM_SEQS),
        hang_timeout_s=server.engine_hang_timeout_s,
        max_unread_tokens=server.max_unread_tokens,
        stall_timeout_s=server.stall_timeout_s,
        transport=transport,
    )
