"""``sluice engine``: runs one engine for the gateways of all hosts.

It registers the engine in PostgreSQL, renews its lease, and starts it again when it dies. The
engine itself listens for gateways, which show each other their keys. While PostgreSQL is away,
nothing changes: gateways use the engines that they know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from engine.client.client import EngineClient
from engine.client.transport import EngineProcess, OnExit, OnMessage
from engine.config import EngineConfig
from engine.errors import EngineDead
from engine.messages import LoadProgress
from gateway import logs, secrets
from gateway.config import Config
from gateway.errors import AddressInUse, ConfigError
from gateway.fleet.identity import FleetKeys, Identity, derive_keys, identify
from gateway.fleet.registry import LEASE, RENEW_S, record_of
from gateway.processes.server import dsn_of
from gateway.processes.signals import ending_signals_sent_to
from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import EngineRecord, SharedState
from tenants.store import Store

logger = logging.getLogger(__name__)

MOVE_S = 2.0
"""How long an engine that leaves is kept for gateways to hear of it, and to move its requests."""


class EngineHost:
    """One engine and its row in the registry."""

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        keys: FleetKeys,
        identity: Identity,
        on_progress: Callable[[LoadProgress], None] | None = None,
        process: type[EngineProcess] = EngineProcess,
    ) -> None:
        """Raises ``AddressInUse`` if the address of the settings cannot be used."""
        self._config = config
        self._shared = shared
        self._keys = keys
        self._identity = identity
        self._process = process
        self._bound, self.address = _address(config.fleet.engine_host, config.fleet.engine_port)
        port = self.address.rpartition(":")[2]
        self.id = config.fleet.engine_id or f"{socket.gethostname()}:{port}"
        self._epoch = 0
        self._changed = asyncio.Event()
        self._outage = OutageLog(logger)
        self.engine = EngineClient(
            config.engine,
            on_progress=on_progress,
            hang_timeout_s=config.server.engine_hang_timeout_s,
            transport=self._spawn,
            name=self.id,
        )
        self.engine.on_change = self._changed.set

    def _spawn(
        self,
        config: EngineConfig,
        on_message: OnMessage,
        on_exit: OnExit,
        *,
        follows_kill: bool = False,
    ) -> EngineProcess:
        self._begin_epoch()
        return self._process(
            config,
            on_message,
            on_exit,
            shared_address=self._bound,
            curve=self._keys.engine,
            epoch=self._epoch,
            follows_kill=follows_kill,
        )

    def _begin_epoch(self, after: int = 0) -> None:
        self._epoch = max(self._epoch + 1, after + 1, time.time_ns())

    async def run(self, on_ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until cancelled. Raises ``ConfigError`` if engines of this model with other weights
        are registered, and as ``EngineClient.start`` does."""
        starting = asyncio.create_task(self.engine.start(), name="engine start")
        registering = asyncio.create_task(self._keep_registered(), name="registration")
        try:
            await asyncio.wait((starting, registering), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                on_ready(self.id)
            await registering
        finally:
            starting.cancel()
            registering.cancel()
            await asyncio.gather(starting, registering, return_exceptions=True)
            await self._leave()

    async def _keep_registered(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._register()
            except StoreUnavailable as error:
                self._outage.failed("The lease of this engine is not renewed: %s", error)
            else:
                self._outage.succeeded("The lease of this engine is renewed again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._changed.wait()

    async def _register(self) -> None:
        record = record_of(
            self.engine,
            self._config,
            self._identity,
            engine_id=self.id,
            epoch=self._epoch,
            address=self.address,
            public_key=self._keys.engine.public,
        )
        verdict = await self._shared.register_engine(record, LEASE)
        if verdict == "other weights":
            raise ConfigError(
                f"engines of {record.model!r} are registered that have other weights or settings; "
                "stop those, give this engine theirs, or another models.served_model_name"
            )
        if verdict == "epoch over":
            known = await self._find()
            if known is not None and known.condition != "lost" and known.address != self.address:
                raise ConfigError(
                    f"another engine is called {self.id!r}, at {known.address}; give each its own "
                    "fleet.engine_id"
                )
            logger.warning("gateways have given this engine up: it comes back with a new epoch")
            # Its name may have been that of an engine on a host whose clock is ahead.
            self._begin_epoch(after=0 if known is None else known.epoch)
            with contextlib.suppress(EngineDead):  # A new one begins its own.
                self.engine.begin_epoch(self._epoch)
            self._changed.set()

    async def _find(self) -> EngineRecord | None:
        """What the registry has of this name."""
        records = await self._shared.list_engines()
        return next((record for record in records if record.id == self.id), None)

    async def _leave(self) -> None:
        """Have gateways move what runs here, and stop the engine."""
        try:
            await self._shared.forget_engine(self.id, self._epoch)
        except StoreUnavailable as error:
            logger.warning("the engine stays registered until its lease is over: %s", error)
        else:
            with contextlib.suppress(EngineDead):
                deadline = time.monotonic() + MOVE_S
                while time.monotonic() < deadline:
                    stats = await self.engine.fetch_stats()
                    if not stats.num_running + stats.num_waiting + stats.num_parked:
                        break
                    await asyncio.sleep(0.05)
        await self.engine.close()


def _address(host: str, port: int) -> tuple[str, str]:
    """Where the engine binds, in numbers, and what gateways connect to."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            numeric, port = probe.getsockname()[:2]
    except OSError as exc:
        raise AddressInUse(
            f"{host}:{port} cannot be listened on ({exc.strerror}); set fleet.engine_host to the "
            "address of this host that gateways reach, and fleet.engine_port to a free port"
        ) from None
    shown = f"[{numeric}]" if ":" in numeric else numeric
    name = f"[{host}]" if ":" in host else host
    return f"tcp://{shown}:{port}", f"tcp://{name}:{port}"


async def serve(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run an engine until SIGINT or SIGTERM.

    Raises ``SetupError``, ``TenantsError`` or ``EngineError`` if it cannot start.
    """
    loaded = secrets.load(Path(config.tenants.secrets_file))
    identity = await asyncio.to_thread(identify, config.engine)
    store = await Store.connect(
        dsn_of(config.tenants), max_size=2, is_pooled=config.tenants.transaction_pooling
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        keys = derive_keys(loaded.key_pepper)
        host = EngineHost(config, store.shared, keys, identity, on_progress)
        signalled = asyncio.Event()

        def on_signal(_: signal.Signals) -> None:
            signalled.set()

        with ending_signals_sent_to(on_signal):
            running = asyncio.create_task(host.run(on_ready), name="engine host")
            stopping = asyncio.create_task(signalled.wait(), name="signals")
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if running.done():
                running.result()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def run(config: Config, *, on_progress: Callable[[LoadProgress], None] | None = None) -> None:
    """Run ``serve`` on an event loop of its own. Raises what it raises."""
    logs.configure(config.server.log_level, config.server.log_format)

    def on_ready(engine_id: str) -> None:
        logger.info("the engine %s serves %s", engine_id, config.model_name)

    asyncio.run(serve(config, on_progress=on_progress, on_ready=on_ready))
