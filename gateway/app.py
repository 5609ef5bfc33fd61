"""Makes the ASGI app: all routes, and the middleware that a request passes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from engine.client.client import EngineClient
from gateway import rate_limits
from gateway.answers.event_stream import STREAM_ID_HEADER
from gateway.config import Config
from gateway.lifecycle import ABORT_S
from gateway.middleware.access_log import AccessLog
from gateway.middleware.auth import Auth
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.errors import Errors
from gateway.middleware.idempotency import Idempotency
from gateway.middleware.rate_limit import RateLimit
from gateway.middleware.request_id import RequestId
from gateway.routes.admin import PREFIX as ADMIN_PREFIX
from gateway.routes.admin_adapters import adapter_routes
from gateway.routes.admin_live import live_routes
from gateway.routes.admin_tenants import TenantRoutes
from gateway.routes.admin_usage import usage_routes
from gateway.routes.answers import Answers
from gateway.routes.chat import PATH as CHAT_PATH
from gateway.routes.chat import chat_route
from gateway.routes.chat_ws import PATH as CHAT_WS_PATH
from gateway.routes.chat_ws import unknown_ws_route, ws_route
from gateway.routes.completions import PATH as COMPLETIONS_PATH
from gateway.routes.completions import completions_route
from gateway.routes.documents import ASYNCAPI_PATH, OPENAPI_PATH, document_routes
from gateway.routes.health import health_routes
from gateway.routes.models import model_routes
from gateway.routes.pages import page_routes, public_paths
from gateway.routes.responses import PATH as RESPONSES_PATH
from gateway.routes.responses import ResponseRoutes
from gateway.routes.streams import stream_routes
from gateway.routes.tickets import tickets_route
from gateway.routes.tokenize import tokenize_routes
from gateway.secrets import Secrets
from gateway.services import Services, create_services
from gateway.sockets.strangers import Strangers
from tenants.store import Store

_GENERATING = frozenset({CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH})
"""The routes whose requests reserve quota."""


def create_app(
    config: Config,
    *,
    engine: EngineClient,
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
    services = create_services(
        config, engine=engine, store=store, secrets=secrets, metrics_folder=metrics_folder
    )
    app = Starlette(
        routes=_routes(services),
        middleware=_middleware(services),
        exception_handlers={HTTPException: _raise},
        lifespan=_lifespan,
    )
    # Starlette's redirects to a path with or without a slash would echo the client's Host header.
    app.router.redirect_slashes = False
    app.state.services = services
    return app


def _routes(services: Services) -> list[BaseRoute]:
    config, engine = services.config, services.engine
    answers = Answers(services.streams, heartbeat_s=config.server.heartbeat_s)
    serving = services.admission, services.generations, answers
    strangers = Strangers(config.server.ws_max_unauthenticated)
    return [
        chat_route(*serving),
        completions_route(*serving),
        *ResponseRoutes(services.responses, services.streams, config.server).routes(),
        *stream_routes(services.streams, config.server),
        tickets_route(services.tickets),
        *tokenize_routes(services.admission, engine, services.tokenizer),
        *document_routes(),
        *TenantRoutes(
            services.store, services.secrets.key_pepper, services.revocations.on_change
        ).routes(),
        *usage_routes(services.store),
        *live_routes(services.store, services.generations, engine),
        *adapter_routes(services.adapters, services.store, services.revocations.on_change),
        *model_routes(services.models, engine),
        *(
            ws_route(
                path,
                make_session,
                authenticator=services.authenticator,
                lifecycle=services.lifecycle,
                metrics=services.metrics,
                tickets=services.tickets,
                strangers=strangers,
                allowed_origins=config.server.allowed_origins,
            )
            for path, make_session in (
                (CHAT_WS_PATH, services.chat_session),
                (RESPONSES_PATH, services.responses_session),
            )
        ),
        *health_routes(
            engine=engine,
            store=services.store,
            lifecycle=services.lifecycle,
            metrics=services.metrics,
        ),
        unknown_ws_route(),
        *page_routes(),
    ]


def _middleware(services: Services) -> list[Middleware]:
    """All middleware, the outermost first."""
    config = services.config.server
    return [
        Middleware(RequestId),
        Middleware(AccessLog, metrics=services.metrics),
        *([_cors(config.allowed_origins)] if config.allowed_origins else []),
        Middleware(Errors, is_draining=lambda: services.lifecycle.draining),
        Middleware(
            Auth,
            authenticator=services.authenticator,
            sockets={CHAT_WS_PATH, RESPONSES_PATH},
            public={
                "/livez",
                "/readyz",
                OPENAPI_PATH,
                ASYNCAPI_PATH,
                CHAT_WS_PATH,
                *public_paths(),
            },
            scopes={
                "/metrics": "admin",
                f"{ADMIN_PREFIX}/": "usage",
                RESPONSES_PATH: "responses",
                f"{RESPONSES_PATH}/": "responses",
            },
        ),
        Middleware(
            RateLimit,
            check=services.admission.check_open,
            attempts=services.quota.attempts,
            shared=services.store.shared,
            paths=_GENERATING,
        ),
        Middleware(BodyLimit, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s),
        Middleware(
            Idempotency,
            shared=services.store.shared,
            streams=services.streams,
            peers=services.peers,
            paths=_GENERATING,
            retention_s=config.idempotency_retention_s,
        ),
    ]


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=[
            "x-request-id",
            "x-should-retry",
            "retry-after",
            "retry-after-ms",
            STREAM_ID_HEADER,
            "idempotent-replayed",
            *rate_limits.NAMES,
        ],
    )


async def _raise(request: Request, exc: Exception) -> Response:
    """Pass Starlette's own HTTP errors to ``Errors``; by default they are answered in plain
    text."""
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        raise HTTPException(405, headers={"Allow": ", ".join(_methods_at(request))})
    raise exc


def _methods_at(request: Request) -> list[str]:
    """The methods of all routes at this path. Starlette's error has only those of the first."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.lifecycle.start()
    yield
    await services.lifecycle.drain()
    await services.streams.close()
    await services.responses.close(ABORT_S)
    await services.lifecycle.close()
