"""``/livez``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.metrics.metrics import CONTENT_TYPE
from gateway.services import Services
from tenants.errors import TenantsError
from tenants.store import Store

STORE_TIMEOUT_S = 1.0
NEEDED = frozenset({"quota leases", "changes", "revocations"})
"""Work without which limits do not hold, or revoked keys go on working."""


class Readiness(msgspec.Struct, kw_only=True):
    """The body of ``/readyz``."""

    status: Literal["ready", "not ready"]
    engine: Literal["ready", "away"]
    """Whether an engine is ready."""
    models: Mapping[str, Literal["ready", "away"]]
    """Of each, by name, whether an engine serves it."""
    engines: Mapping[str, Literal["ready", "drained", "away"]]
    """Each one, by name."""
    store: Literal["ready", "away"]
    draining: bool
    failing: Sequence[str]
    """Work beside the requests that dies again and again, for a minute now."""


async def livez(services: Services, request: Request) -> Response:
    return Response(b'{"status":"alive"}', media_type="application/json")


async def readyz(services: Services, request: Request) -> Response:
    """200 while requests are served, even if the database is away: known keys keep working, and
    taking every gateway out of rotation at once would make an outage of it. The background work
    that is needed survives it, too."""
    engine, lifecycle = services.engine, services.lifecycle
    failing = lifecycle.failing
    ready = engine.ready and not lifecycle.draining and NEEDED.isdisjoint(failing)
    body = Readiness(
        status="ready" if ready else "not ready",
        engine="ready" if engine.ready else "away",
        models={name: "ready" if one.ready else "away" for name, one in engine.items()},
        engines=engine.states,
        store="ready" if await _answers(services.store) else "away",
        draining=lifecycle.draining,
        failing=failing,
    )
    headers = {} if ready else {"retry-after": "1"}
    return Response(
        msgspec.json.encode(body),
        200 if ready else 503,
        headers,
        media_type="application/json",
    )


async def metrics(services: Services, request: Request) -> Response:
    return Response(services.metrics.render(), media_type=CONTENT_TYPE)


async def _answers(store: Store) -> bool:
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            await store.ping()
    except (TenantsError, TimeoutError):
        return False
    return True
