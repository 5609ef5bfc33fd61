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
from gateway import context, rate_limits, sampling_defaults
from gateway.admission import Admission
from gateway.background import Background
from gateway.chat_session import ChatSession
from gateway.config import Config, TenantsConfig
from gateway.errors import ConfigError
from gateway.generation import Generations
from gateway.lifecycle import Lifecycle, Session
from gateway.metrics import Metrics
from gateway.middleware.access_log import AccessLog
from gateway.middleware.auth import Auth
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.errors import Errors
from gateway.middleware.request_id import RequestId
from gateway.revocations import Revocations
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
from tenants.changes import ChangeListener
from tenants.journal import Journal
from tenants.last_used import LastUsed
from tenants.quota import Quota
from tenants.store import Store
from tenants.usage import Ledger


def create_app(
    config: Config, *, engine: EngineClient, store: Store, secrets: Secrets
) -> Starlette:
    """The ASGI app. It owns ``engine`` and ``store`` from its lifespan's end on: it closes them.

    Whoever made ``engine`` starts it, before or after: until then ``/readyz`` and chats answer 503.
    Raises ``ModelLoadError`` when the model's tokenizer or chat template cannot be read,
    ``ConfigError`` when the folder of the usage journal cannot be used.
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
    journal = _open_journal(config.tenants)
    ledger = Ledger(store, journal=journal)
    quota = Quota(store)
    last_used = LastUsed(store)
    authenticator = Authenticator(store, secrets.key_pepper, last_used=last_used)
    generations = Generations(
        engine=engine,
        tokenizer=tokenizer,
        ledger=ledger,
        quota=quota,
        metrics=metrics,
        flush_interval_s=config.server.flush_interval_ms / 1000,
    )
    admission = Admission(
        config,
        engine=engine,
        ledger=ledger,
        quota=quota,
        authenticator=authenticator,
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
    sessions: set[Session] = set()
    work = {"quota leases": quota.run, "last uses of keys": last_used.run}
    if config.tenants.session_dsn is not None:
        revocations = Revocations(authenticator, generations=generations, sessions=sessions)
        listener = ChangeListener(config.tenants.session_dsn, revocations.on_change)
        work |= {"changes": listener.run, "revocations": revocations.run}
        metrics.watch_changes(listener)
    lifecycle = Lifecycle(
        engine=engine,
        store=store,
        ledger=ledger,
        journal=journal,
        background=Background(work),
        sessions=sessions,
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
    app.state.metrics = metrics
    app.state.quota = quota
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
            expose_headers=[
                "x-request-id",
                "x-should-retry",
                "retry-after",
                "retry-after-ms",
                STREAM_ID_HEADER,
                *rate_limits.NAMES,
            ],
        )
    ]


def _open_journal(config: TenantsConfig) -> Journal:
    try:
        return Journal(config.journal_folder)
    except OSError as exc:
        raise ConfigError(
            f"{config.journal_folder}: usage cannot be kept here ({exc.strerror}); "
            "set tenants.journal_dir to a folder that can be written"
        ) from None


async def _raise(request: Request, exc: Exception) -> Response:
    """Starlette would answer its own HTTP errors in plain text; ``Errors`` knows better."""
    raise exc


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.lifecycle.start()
    yield
    await app.state.lifecycle.drain()
    await app.state.streams.close()
    await app.state.lifecycle.close()
