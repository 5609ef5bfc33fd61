"""Serves the app: sockets, uvicorn, signals, and the gateway's shutdown before uvicorn's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette

from engine.client.fleets import Fleets
from engine.client.transport import EngineProcess, MakeTransport
from engine.garbage import return_large_blocks, tune_collector
from engine.messages import LoadProgress
from gateway import logs, secrets
from gateway.app import create_app
from gateway.config import Config, ServerConfig, TenantsConfig, local_url
from gateway.errors import AddressInUse, ConfigError
from gateway.lifecycle import ABORT_S, Lifecycle
from gateway.metrics.metrics import Metrics
from gateway.processes import listening, metrics_server, open_files
from gateway.processes.fleet import spawned_fleets
from gateway.transport import protocol
from tenants.store import Store

logger = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.1

_TAKEN = {errno.EADDRINUSE: "is taken", errno.EADDRNOTAVAIL: "is not an address of this machine"}


def bind(config: ServerConfig, *, shared: bool = False) -> socket.socket:
    """The listening socket. ``shared``: let other processes listen on the same port.

    Raises ``AddressInUse``, whose message names the cause and what to do.
    """
    listener = listening.activated() if listening.is_activated() else bound(config, shared=shared)
    listener.listen(open_files.MAX_BACKLOG)
    listener.setblocking(False)
    return listener


def bound(config: ServerConfig, *, shared: bool) -> socket.socket:
    """A socket that is bound to the address, but accepts no connections. Raises as ``bind``
    does."""
    _check_peer_host(config.peer_host)
    if config.unix_socket is not None:
        return listening.unix_socket(config.unix_socket)
    address = f"{config.host}:{config.port}"
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise AddressInUse(f"{address}: no such host ({exc.strerror}); set server.host") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(where)
    except OSError as exc:
        listener.close()
        why = _TAKEN.get(exc.errno or 0, exc.strerror)
        raise AddressInUse(
            f"{address} {why}; choose another server.port (0 picks a free one) or server.host"
        ) from None
    return listener


def _check_peer_host(host: str | None) -> None:
    """Find an address that is not this machine's at the start, not when it is first needed."""
    if host is None:
        return
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(where)
    except OSError as exc:
        raise ConfigError(
            f"server.peer_host: {host!r} is not an address of this machine ({exc.strerror}); set "
            "it to the one that the other hosts reach, or leave it out"
        ) from None


def url_of(listener: socket.socket, *, has_tls: bool = False) -> str:
    """``http://host:port`` as a client on this machine can use it; the path of a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return local_url(host, port, scheme="https" if has_tls else "http")


class Server(uvicorn.Server):
    """uvicorn, with the gateway's stages of shutdown before its own."""

    def __init__(
        self, app: Starlette, config: ServerConfig, *, backlog: int = open_files.MAX_BACKLOG
    ) -> None:
        """backlog: connections that may wait to be accepted."""
        super().__init__(_uvicorn_config(app, config, backlog))
        self._lifecycle: Lifecycle = app.state.services.lifecycle
        self.observe_lag = app.state.services.metrics.observe_lag

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        draining = asyncio.create_task(self._lifecycle.drain(), name="drain")
        try:
            while not draining.done():
                await asyncio.wait((draining,), timeout=0.1)
                if self.force_exit:  # a second Ctrl-C
                    self._lifecycle.hurry()
            draining.result()
        finally:
            await super().shutdown(sockets)
            if self.force_exit:
                # uvicorn would leave the lifespan's task, whose cancellation logs a traceback.
                await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but a captured signal is not raised again, because ``serve`` still has to
        close the other parts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _uvicorn_config(app: Starlette, config: ServerConfig, backlog: int) -> uvicorn.Config:
    http_protocol, ws_protocol = protocol.limited(config, app.state.services.cork)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http_protocol,
        ws=ws_protocol,
        backlog=backlog,
        ws_max_size=config.ws_max_message_bytes,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # ``create_app`` believes those of ``trusted_proxies``.
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        timeout_keep_alive=config.keep_alive_timeout_s,
        # After the gateway's stages only connections without a request are left.
        timeout_graceful_shutdown=int(ABORT_S),
    )


async def serve(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
    transport: MakeTransport = EngineProcess,
    store: Store | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation, then shut down in order. No process is left.

    A second SIGINT aborts the requests that shutdown waits for. The server listens before the model
    is loaded, so that probes are answered meanwhile. ``on_ready`` is called with the server's URL
    when the model is loaded. ``store`` takes the place of the database at ``tenants.dsn``; it is
    closed.

    Raises:
        SetupError: the address, the secrets or the settings cannot be used, or too few files may
            be open.
        tenants.errors.TenantsError: the store cannot be used.
        engine.errors.EngineError: the model cannot be loaded.
    """
    with contextlib.closing(bind(config.server)) as listener:
        engine = spawned_fleets(config, on_progress=on_progress, transport=transport)
        await serve_on(listener, config, engine, on_ready, store=store)


async def serve_on(
    listener: socket.socket,
    config: Config,
    engine: Fleets,
    on_ready: Callable[[str], None] | None = None,
    *,
    metrics_folder: Path | None = None,
    store: Store | None = None,
) -> None:
    """As ``serve``, with the caller's listener, which stays open, and an engine that has not been
    started, which is closed. ``metrics_folder``: as for ``create_app``."""
    listening.check_tls(config.server)
    num_connections, backlog = open_files.allow_connections(config.server.max_connections)
    limits = msgspec.structs.replace(config.server, max_connections=num_connections)
    config = msgspec.structs.replace(config, server=limits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        dsn = "" if store is not None else dsn_of(config.tenants)
        loaded = secrets.load(Path(config.tenants.secrets_file))
        if store is None:
            pooled = config.tenants.transaction_pooling
            store = await Store.connect(dsn, is_pooled=pooled)
        stack.push_async_callback(store.close)
        app = create_app(
            config,
            engine=engine,
            store=store,
            secrets=loaded,
            metrics_folder=metrics_folder,
        )
        stack.push_async_callback(app.state.services.lifecycle.close)
        await _serve_metrics(stack, config.server, app.state.services.metrics)
        served = Server(app, limits, backlog=backlog)
        has_tls = config.server.tls_certificate is not None
        if has_tls:
            served.config.load()
            assert served.config.ssl is not None
            following = listening.follow_certificate(config.server, served.config.ssl)
            task = asyncio.create_task(following, name="certificate")
            stack.callback(task.cancel)
        await _serve(served, listener, engine, url_of(listener, has_tls=has_tls), on_ready)


async def _serve_metrics(
    stack: contextlib.AsyncExitStack, config: ServerConfig, metrics: Metrics
) -> None:
    """Serve ``/metrics`` on its own port, if it has one, until ``stack`` unwinds."""
    if config.metrics_port is None:
        return
    own = msgspec.structs.replace(
        config, host=config.metrics_host, port=config.metrics_port, unix_socket=None
    )
    listener = bound(own, shared=config.workers > 1)
    stack.enter_context(contextlib.closing(listener))
    listener.listen()
    listener.setblocking(False)
    logger.info("metrics on %s/metrics", url_of(listener))
    await stack.enter_async_context(metrics_server.served(listener, metrics))


def dsn_of(settings: TenantsConfig) -> str:
    """Raises ``ConfigError`` if there is none."""
    if settings.dsn is None:
        raise ConfigError("tenants.dsn is missing; set it to the PostgreSQL to use")
    return settings.dsn


async def _serve(
    server: Server,
    listener: socket.socket,
    engine: Fleets,
    url: str,
    on_ready: Callable[[str], None] | None,
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
    watching = asyncio.create_task(_observe_lag(server.observe_lag), name="loop lag")
    starting = asyncio.create_task(engine.start(), name="engine start")
    try:
        await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
        # If a signal has closed the engine, its start may fail, which is no error.
        if starting.done() and not server.should_exit:
            starting.result()
            logger.info("serving on %s", url)
            listening.notify("READY=1")
            if on_ready is not None:
                on_ready(url)
            await asyncio.shield(serving)
    finally:
        listening.notify("STOPPING=1")
        server.should_exit = True
        starting.cancel()
        watching.cancel()
        await asyncio.gather(starting, watching, return_exceptions=True)
        await serving


async def _observe_lag(observe: Callable[[float], object]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        observe(max(0.0, loop.time() - due_s))


def run(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run ``serve`` on an event loop of uvloop's. Raises what it raises."""
    import uvloop

    def begin(url: str) -> None:
        tune_collector()
        return_large_blocks()
        if on_ready is not None:
            on_ready(url)

    logs.configure(config.server.log_level, config.server.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, on_progress=on_progress, on_ready=begin))
