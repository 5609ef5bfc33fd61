"""Makes the ASGI app: the middleware that a request passes through, and the dispatch behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from gateway import rate_limits
from gateway.answers.event_stream import STREAM_ID_HEADER
from gateway.config import Config
from gateway.lifecycle import ABORT_S
from gateway.middleware.access_log import AccessLog
from gateway.middleware.auth import Auth, Operations
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.errors import Errors
from gateway.middleware.idempotency import Idempotency
from gateway.middleware.memory_share import MemoryShare
from gateway.middleware.rate_limit import RateLimit
from gateway.middleware.request_id import RequestId
from gateway.middleware.traces import Traces
from gateway.routes.answers import IGNORED_HEADER
from gateway.routes.dispatch import dispatcher
from gateway.routes.table import OPERATIONS
from gateway.secrets import Secrets
from gateway.services import Services, create_services
from gateway.tracing import Tracing
from tenants.store import Store


def create_app(
    config: Config,
    *,
    engine: Fleet | Fleets,
    store: Store,
    secrets: Secrets,
    metrics_folder: Path | None = None,
) -> Starlette:
    """The ASGI app. ``app.state.services`` has its parts.

    The caller starts ``engine``, before or after; until then ``/readyz`` and chats are answered
    with 503. At the end of its lifespan the app closes ``engine`` and ``store``.
    ``metrics_folder``: the folder in which all workers of this server share their metrics; None if
    there is one process. Raises as ``create_services`` does.
    """
    tracing = None if config.tracing.otlp_endpoint is None else Tracing(config.tracing)
    services = create_services(
        config, engine=engine, store=store, secrets=secrets, metrics_folder=metrics_folder
    )
    operations = Operations(OPERATIONS)
    app = Starlette(middleware=_middleware(services, operations, tracing), lifespan=_lifespan)
    app.router.default = dispatcher(services, operations)
    services.batches.serve(app.router.default, OPERATIONS)
    # Starlette's redirects to a path with or without a slash would echo the client's Host header.
    app.router.redirect_slashes = False
    app.state.services = services
    app.state.tracing = tracing
    return app


def _middleware(
    services: Services, operations: Operations, tracing: Tracing | None
) -> list[Middleware]:
    """All middleware, the outermost first."""
    config = services.config.server
    return [
        *_proxies(config.trusted_proxies),
        Middleware(RequestId),
        *([] if tracing is None else [Middleware(Traces, tracing=tracing)]),
        Middleware(AccessLog, metrics=services.metrics),
        *([_cors(config.allowed_origins)] if config.allowed_origins else []),
        Middleware(
            Errors,
            is_draining=lambda: services.lifecycle.draining,
            on_refusal=services.count_refusal,
        ),
        Middleware(
            Auth,
            authenticator=services.authenticator,
            operations=operations,
            starts=services.starts,
        ),
        Middleware(
            RateLimit,
            check=services.admission.check_open,
            attempts=services.quota.attempts,
            shared=services.store.shared,
        ),
        Middleware(MemoryShare),
        Middleware(
            BodyLimit,
            max_bytes=config.max_body_bytes,
            max_file_bytes=config.max_file_bytes,
            timeout_s=config.body_timeout_s,
        ),
        Middleware(
            Idempotency,
            shared=services.store.shared,
            streams=services.streams,
            peers=services.peers,
            retention_s=config.idempotency_retention_s,
        ),
    ]


def _proxies(trusted: Sequence[str]) -> list[Middleware]:
    """The client's address and scheme as a proxy that is trusted has them."""
    return [Middleware(ProxyHeadersMiddleware, trusted_hosts=list(trusted))] if trusted else []


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=[
            "x-request-id",
            "x-sluice-request-id",
            "traceparent",
            "request-id",
            IGNORED_HEADER,
            "x-should-retry",
            "retry-after",
            "retry-after-ms",
            STREAM_ID_HEADER,
            "idempotent-replayed",
            *rate_limits.NAMES,
        ],
    )


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.lifecycle.start()
    yield
    await services.lifecycle.drain()
    await services.streams.close()
    await services.responses.close(ABORT_S)
    await services.lifecycle.close()
    if services.authenticator.provider is not None:
        await services.authenticator.provider.close()
    if app.state.tracing is not None:
        await asyncio.to_thread(app.state.tracing.close)
