"""Replaces the engines of a fleet one after the other: a rolling upgrade.

    drain ──► its requests have moved ──► started anew ──► ready ──► undrain ──► the next

A gateway's own engine is started anew by its gateway, and one that Ray has placed by its
controller. One of ``sluice engine`` by itself is replaced by whatever restarts that program, under
the same name or another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from gateway.errors import SetupError
from tenants.errors import StoreUnavailable
from tenants.shared import EngineRecord, SharedState

T = TypeVar("T")

POLL_S = 0.5
SETTLE_S = 3.0
"""How long an engine must be drained until its row says what is left there: gateways renew it each
second while it is drained."""


class RollFailed(SetupError):
    """An engine did not come back; the others are as they were."""


class Roll:
    """One run over the fleet."""

    def __init__(
        self, shared: SharedState, *, timeout_s: float, say: Callable[[str], object]
    ) -> None:
        self._shared = shared
        self._timeout_s = timeout_s
        self._say = say

    async def run(self, model: str | None = None) -> None:
        """Replace all engines that are ready, of a model or of all. Raises ``RollFailed``, and
        ``TenantsError`` if the registry cannot be used."""
        engines = [one for one in await self._ready() if model in (None, one.model)]
        if not engines:
            raise RollFailed("no engine is ready; `sluice fleet list` shows all")
        for number, engine in enumerate(engines, 1):
            await self._replace(engine, f"{number} of {len(engines)}, {engine.id}")
        self._say(f"Replaced {len(engines)} engines.")

    async def _ready(self) -> Sequence[EngineRecord]:
        known = await self._patiently(self._shared.list_engines)
        return [engine for engine in known if engine.condition in ("ready", "drained")]

    async def _replace(self, engine: EngineRecord, name: str) -> None:
        others = [
            one
            for one in await self._ready()
            if one.model == engine.model and one.id != engine.id and not one.is_drained
        ]
        if not others:
            raise RollFailed(
                f"{engine.id} is the only engine of {engine.model!r} that takes requests: start or "
                "undrain another one, so that its requests have somewhere to go"
            )
        self._say(f"{name}: drain")
        drain = partial(self._shared.drain_engine, engine.id)
        await self._patiently(partial(drain, is_drained=True))
        await asyncio.sleep(SETTLE_S)
        await self._until(lambda now: _is_idle(now, engine), f"{engine.id} still has requests")
        await self._patiently(partial(self._shared.restart_engine, engine.id, engine.epoch))
        who = (
            ""
            if engine.address is None
            else ", which is for whatever keeps `sluice engine` running"
        )
        self._say(f"{name}: start anew{who}")
        num_ready = len(others) + 1
        await self._until(
            lambda now: _is_replaced(now, engine, num_ready), f"{engine.id} is not back"
        )
        if not engine.is_drained:
            await self._patiently(partial(drain, is_drained=False))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the registry answers: an engine must not stay drained because PostgreSQL was
        restarted. Nothing that is asked matters twice."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_S)

    async def _until(self, is_so: Callable[[Sequence[EngineRecord]], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not is_so(await self._patiently(self._shared.list_engines)):
            if time.monotonic() > deadline:
                raise RollFailed(
                    f"{otherwise} after {self._timeout_s:g} s; it stays drained, and the engines "
                    "after it are as they were. See its log, then `sluice fleet undrain`"
                )
            await asyncio.sleep(POLL_S)


def _is_idle(known: Sequence[EngineRecord], engine: EngineRecord) -> bool:
    """Whether nothing runs there, or it was replaced already."""
    now = next((one for one in known if one.id == engine.id), None)
    if now is None or now.epoch != engine.epoch:
        return True
    return now.num_running + now.num_waiting == 0


def _is_replaced(known: Sequence[EngineRecord], engine: EngineRecord, num_ready: int) -> bool:
    """Whether a new engine serves in its place: of the same name, or if that has left, of any."""
    now = next((one for one in known if one.id == engine.id), None)
    if now is not None and now.condition != "lost":
        return now.epoch != engine.epoch and now.state == "ready"
    ready = [one for one in known if one.model == engine.model and one.condition == "ready"]
    return len(ready) >= num_ready
