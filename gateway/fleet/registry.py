"""Follows the registry of engines in PostgreSQL: a gateway's side of it.

    engine_replica ──LISTEN, or every RENEW_S──► Registry ──add, remove, drain──► Fleets

While PostgreSQL is away, the last known engines are used. One whose lease is over is given up: the
gateway marks its row, and listens to it no more. It may come back with a later epoch. This
gateway's own engines are registered too, so that they are seen and can be drained.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from engine.client.attached import AttachedEngine
from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.errors import ModelLoadError
from engine.messages import PROTOCOL
from gateway.config import Config
from gateway.fleet.identity import FleetKeys, Identity, identify
from gateway.version import version
from tenants.changes import Change
from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import EngineRecord, SharedState

logger = logging.getLogger(__name__)

RENEW_S = 5.0
DRAINED_RENEW_S = 1.0
LEASE = timedelta(seconds=15)
PATIENCE_S = 2 * RENEW_S
"""How long a lease must be seen to be over: engines that could not reach PostgreSQL either, or
whose leases ended at once because its clock was set, renew theirs meanwhile."""


class Joined(NamedTuple):
    """An engine of another host that is in use."""

    epoch: int
    model: str
    client: EngineClient


class Own(NamedTuple):
    """An engine that this host's gateway runs."""

    model: str
    client: EngineClient


class Registry:
    """Keeps the ``Fleet`` of each model as the registry says."""

    def __init__(
        self, shared: SharedState, fleets: Fleets, config: Config, keys: FleetKeys
    ) -> None:
        self.num_refused: Counter[str] = Counter()
        """Engines, by why they were refused."""
        self._shared = shared
        self._fleets = fleets
        self._configs = {one.model_name: one for one in config.each}
        self._keys = keys
        self._own = {
            own_id(fleet, engine): Own(model, engine)
            for model, fleet in fleets.items()
            for engine in fleet.engines
        }
        self._registered: dict[str, EngineRecord] = {}
        """This host's own that are ready, as they were registered last."""
        self._identities: dict[str, Identity] = {}
        """By model."""
        self._joined: dict[str, Joined] = {}
        self._refused: dict[str, int] = {}
        """The epoch in which each engine was refused, which is logged once."""
        self._over_since: dict[str, float] = {}
        """Since when the lease of each engine is seen to be over."""
        self._changed = asyncio.Event()
        self._outage = OutageLog(logger)

    def on_change(self, change: Change) -> None:
        """A callback for a ``ChangeListener``."""
        if change.engine_id is not None or not any(change):
            self._changed.set()

    async def run(self) -> None:
        """Follow the registry until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._register_own()
                await self._apply(await self._shared.list_engines())
            except StoreUnavailable as error:
                self._over_since.clear()
                self._outage.failed("The engines of other hosts stay as they are: %s", error)
            else:
                self._outage.succeeded("The registry of engines is followed again")
            try:
                async with asyncio.timeout(self._renew_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    @property
    def _renew_s(self) -> float:
        """More often while somebody may wait for an engine of this host to have nothing left."""
        waits = any(self._fleets[own.model].is_drained(own.client) for own in self._own.values())
        return min(RENEW_S, DRAINED_RENEW_S) if waits else RENEW_S

    async def _identify(self, model: str) -> Identity:
        if (known := self._identities.get(model)) is None:
            known = await asyncio.to_thread(identify, self._configs[model].engine)
            self._identities[model] = known
        return known

    async def _register_own(self) -> None:
        for engine_id, (model, engine) in self._own.items():
            if not engine.ready:
                if (known := self._registered.pop(engine_id, None)) is not None:
                    away = msgspec.structs.replace(known, state="loading")
                    await self._shared.register_engine(away, LEASE)
                continue
            record = record_of(
                engine,
                self._configs[model],
                await self._identify(model),
                engine_id=engine_id,
                epoch=engine.info.epoch,
            )
            verdict = await self._shared.register_engine(record, LEASE)
            self._registered[engine_id] = record
            if verdict == "other weights":
                self._refuse(record, "weights", "engines of the fleet have other weights")

    async def _apply(self, records: Sequence[EngineRecord]) -> None:
        for record in records:
            if (own := self._own.get(record.id)) is not None:
                self._drain(own.model, own.client, is_drained=record.is_drained)
                if record.is_to_restart:
                    own.client.retire(record.epoch)
            elif record.address is not None:
                await self._follow(record, record.address)
        for engine_id in self._joined.keys() - {record.id for record in records}:
            await self._remove(engine_id, "it has left", has_left=True)

    async def _follow(self, record: EngineRecord, address: str) -> None:
        known = self._joined.get(record.id)
        if known is not None and known.epoch != record.epoch:
            await self._remove(record.id, "it was started anew")
            known = None
        if record.state == "lost" or await self._is_over(record):
            if known is not None:
                await self._remove(record.id, "its lease is over")
            return
        if known is None:
            if record.state != "ready" or not record.is_leased or not await self._accepts(record):
                return
            known = self._join(record, address)
        self._drain(known.model, known.client, is_drained=record.is_drained)

    async def _is_over(self, record: EngineRecord) -> bool:
        if record.is_leased:
            self._over_since.pop(record.id, None)
            return False
        since = self._over_since.setdefault(record.id, time.monotonic())
        if time.monotonic() - since < PATIENCE_S:
            return False
        return await self._shared.lose_engine(record.id, record.epoch)

    async def _accepts(self, record: EngineRecord) -> bool:
        if record.model not in self._fleets:
            return False  # It serves a model that is none of this gateway's.
        if abs(record.protocol - PROTOCOL) > 1:
            return self._refuse(record, "protocol", f"it speaks protocol {record.protocol}")
        if record.public_key != self._keys.engine.public:
            return self._refuse(
                record, "key", "it has another key: give all hosts the same tenants.secrets_file"
            )
        try:
            identity = await self._identify(record.model)
        except (ModelLoadError, OSError) as error:
            return self._refuse(record, "model", f"the model is not here to compare: {error}")
        if record.text_hash != identity.text_hash:
            return self._refuse(record, "tokenizer", "it has another tokenizer")
        has_own = any(own.model == record.model for own in self._own.values())
        if has_own and record.config_hash != identity.config_hash:
            return self._refuse(
                record, "weights", "it has other weights or settings than the engines here"
            )
        return True

    def _refuse(self, record: EngineRecord, kind: str, reason: str) -> bool:
        if self._refused.get(record.id) != record.epoch:
            self._refused[record.id] = record.epoch
            self.num_refused[kind] += 1
            logger.error("the engine %s is not used: %s", record.id, reason)
        return False

    def _join(self, record: EngineRecord, address: str) -> Joined:
        transport = partial(
            AttachedEngine,
            address=address,
            curve=self._keys.gateway,
            epoch=record.epoch,
            on_stale=self._count_stale,
        )
        client = self._fleets[record.model].add(record.id, transport)
        logger.info("the engine %s at %s joins", record.id, address)
        self._joined[record.id] = joined = Joined(record.epoch, record.model, client)
        return joined

    def _count_stale(self) -> None:
        self.num_refused["epoch"] += 1

    async def _remove(self, engine_id: str, reason: str, *, has_left: bool = False) -> None:
        logger.warning("the engine %s is used no more: %s", engine_id, reason)
        self._over_since.pop(engine_id, None)
        joined = self._joined.pop(engine_id)
        await self._fleets[joined.model].remove(joined.client, reason, has_left=has_left)

    def _drain(self, model: str, engine: EngineClient, *, is_drained: bool) -> None:
        fleet = self._fleets[model]
        if is_drained != fleet.is_drained(engine):
            (fleet.drain if is_drained else fleet.undrain)(engine)


def own_id(fleet: Fleet, engine: EngineClient) -> str:
    """The id of an engine that only this host's gateway uses: host, process and number."""
    return f"{socket.gethostname()}:{os.getpid() if fleet.spawns else os.getppid()}:{engine.name}"


def record_of(
    engine: EngineClient,
    config: Config,
    identity: Identity,
    *,
    engine_id: str,
    epoch: int,
    address: str | None = None,
    public_key: str | None = None,
) -> EngineRecord:
    """What the registry is to know of an engine."""
    stats = engine.stats
    return EngineRecord(
        id=engine_id,
        model=config.model_name,
        config_hash=identity.config_hash,
        text_hash=identity.text_hash,
        address=address,
        public_key=public_key,
        protocol=PROTOCOL,
        version=version(),
        capacity=config.engine.num_seqs,
        epoch=epoch,
        state="ready" if engine.ready else "loading",
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_admitted=sum(stats.queue_time_counts),
        queue_time_s=stats.queue_time_sum_s,
        node=config.fleet.engine_node or socket.gethostname(),
    )
