"""The only wiring: which part gets which other part, and in which order requests pass them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from engine.chat_template import ChatTemplate
from engine.client import EngineClient
from engine.tokenizer import Tokenizer
from gateway import context, sampling_defaults
from gateway.admission import Admission
from gateway.chat_session import ChatSession
from gateway.config import Config
from gateway.generation import Generations
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.middleware.access_log import AccessLog
from gateway.middleware.auth import Auth
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.errors import Errors
from gateway.middleware.request_id import RequestId
from gateway.routes.answers import Answers
from gateway.routes.chat import chat_route
from gateway.routes.chat_ws import PATH as CHAT_WS_PATH
from gateway.routes.chat_ws import chat_ws_route, unknown_ws_route
from gateway.routes.completions import completions_route
from gateway.routes.health import health_routes
from gateway.routes.models import model_routes
from gateway.routes.pages import page_routes, public_paths
from gateway.routes.streams import stream_routes
from gateway.routes.tickets import tickets_route
from gateway.secrets import Secrets
from gateway.stream_log import MemoryStreamLog
from gateway.streaming import STREAM_ID_HEADER
from gateway.streams import Streams
from gateway.tickets import Tickets
from grammar.compiler import GrammarChecker
from grammar.vocabulary import Vocabulary
from tenants.authenticator import Authenticator
from tenants.store import Store
from tenants.usage import Ledger


def create_app(
    config: Config, *, engine: EngineClient, store: Store, secrets: Secrets
) -> Starlette:
    """The ASGI app. It owns ``engine`` and ``store`` from its lifespan's end on: it closes them.

    Whoever made ``engine`` starts it, before or after: until then ``/readyz`` and chats answer 503.
    Raises ``ModelLoadError`` when the model's tokenizer or chat template cannot be read.
    """
    tokenizer = Tokenizer.load(config.engine.model_dir)
    template = ChatTemplate.load(config.engine.model_dir)
    compiler = GrammarChecker(
        Vocabulary(
            tokenizer.vocabulary(),
            tokenizer.eos_token_ids,
            tokenizer.special_ids,
            tokenizer.vocab_size,
        )
    )
    metrics = Metrics()
    ledger = Ledger(store)
    authenticator = Authenticator(store, secrets.key_pepper)
    generations = Generations(
        engine=engine,
        tokenizer=tokenizer,
        ledger=ledger,
        metrics=metrics,
        flush_interval_s=config.server.flush_interval_ms / 1000,
    )
    admission = Admission(
        config,
        engine=engine,
        ledger=ledger,
        secrets=secrets,
        tokenizer=tokenizer,
        template=template,
        compiler=compiler,
        sampling_defaults=(
            sampling_defaults.load(config.engine.model_dir)
            if config.models.generation_config == "auto"
            else None
        ),
    )
    lifecycle = Lifecycle(
        engine=engine,
        store=store,
        ledger=ledger,
        admission=admission,
        generations=generations,
        compiler=compiler,
        shutdown_timeout_s=config.server.shutdown_timeout_s,
    )
    streams = Streams(
        MemoryStreamLog(
            max_stream_bytes=config.server.max_stream_log_bytes,
            max_tenant_bytes=config.server.max_tenant_stream_log_bytes,
            retention_s=config.server.stream_retention_s,
        ),
        grace_s=config.server.resume_grace_s,
        heartbeat_s=config.server.heartbeat_s,
    )
    tickets = Tickets()
    answers = Answers(streams, heartbeat_s=config.server.heartbeat_s)
    metrics.watch(running=lambda: len(generations), stats=lambda: engine.stats)

    def make_session(socket: WebSocket, api_key: str | None) -> ChatSession:
        return ChatSession(
            socket,
            context.of(socket.scope),
            api_key=api_key,
            config=config.server,
            model=config.model_name,
            engine=engine,
            authenticator=authenticator,
            admission=admission,
            generations=generations,
            streams=streams,
        )

    app = Starlette(
        routes=[
            chat_route(admission, generations, answers),
            completions_route(admission, generations, answers),
            *stream_routes(streams, config.server),
            tickets_route(tickets),
            *model_routes(config.model_name, engine),
            chat_ws_route(
                make_session,
                authenticator=authenticator,
                lifecycle=lifecycle,
                metrics=metrics,
                tickets=tickets,
                allowed_origins=config.server.allowed_origins,
            ),
            *health_routes(engine=engine, store=store, lifecycle=lifecycle, metrics=metrics),
            unknown_ws_route(),
            *page_routes(),
        ],
        middleware=[
            Middleware(RequestId),
            Middleware(AccessLog, metrics=metrics),
            *_cors(config.server.allowed_origins),
            Middleware(Errors),
            Middleware(
                Auth,
                authenticator=authenticator,
                public={"/livez", "/readyz", CHAT_WS_PATH, *public_paths()},
                scopes={"/metrics": "admin"},
            ),
            Middleware(
                BodyLimit,
                max_bytes=config.server.max_body_bytes,
                timeout_s=config.server.body_timeout_s,
            ),
        ],
        exception_handlers={HTTPException: _raise},
        lifespan=_lifespan,
    )
    # A redirect to the other spelling of a path would echo the client's Host header.
    app.router.redirect_slashes = False
    app.state.lifecycle = lifecycle
    app.state.streams = streams
    app.state.authenticator = authenticator
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", STREAM_ID_HEADER],
        )
    ]


async def _raise(request: Request, exc: Exception) -> Response:
    """Starlette would answer its own HTTP errors in plain text; ``Errors`` knows better."""
    raise exc


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await app.state.lifecycle.drain()
    await app.state.streams.close()
    await app.state.lifecycle.close()
