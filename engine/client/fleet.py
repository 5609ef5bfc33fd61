"""The engines that serve one model, as if they were one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import msgspec

from engine.client.client import EngineClient
from engine.client.moves import Moves
from engine.client.router import LeastLoaded, Router
from engine.client.stream import RequestStream
from engine.client.transport import MakeTransport
from engine.errors import AdapterLoadError, EngineDead, QueueFull
from engine.messages import AdapterAnswer, AdapterRef, GenerateRequest, Ready, Stats, TenantStats

logger = logging.getLogger(__name__)

EngineState = Literal["ready", "drained", "away"]
OnTokens = Callable[[float, Sequence[float]], None]


class Fleet:
    """Chooses an engine for each request, and another one when that has died: its streams go on,
    and none of their tokens is sent twice. Call its methods only on the event loop that called
    ``start``."""

    def __init__(
        self,
        engines: Sequence[EngineClient],
        *,
        router: Router | None = None,
        failover_wait_s: float = 30.0,
        spawns: bool = True,
        may_sleep: bool = False,
        make: Callable[[str, MakeTransport], EngineClient] | None = None,
    ) -> None:
        """``failover_wait_s``: how long requests wait for an engine when none is ready.
        ``spawns``: whether the engines start with this object, or with ``may_sleep`` by ``wake``;
        otherwise others start them, and one is enough to begin with, or none with ``may_sleep``:
        they come when requests do. ``make``: makes the client of an engine that joins later, from
        its name and its transport."""
        self.engines = list(engines)
        self.spawns = spawns
        self.may_sleep = may_sleep
        self._make = make
        self.adapters = FleetAdapters(self)
        self._router = router or LeastLoaded()
        self._some_ready = asyncio.Event()
        self.serving = asyncio.Event()
        """Set while an engine takes requests."""
        self._closed = False
        self._waking: asyncio.Task[None] | None = None
        self._group: tuple[str, EngineClient] | None = None
        """The last group of requests, and its engine: they share the blocks of their prompt."""
        self._drained: set[EngineClient] = set()
        self.moves = Moves(self._candidates, self._note_sent, failover_wait_s)
        self.num_sent: Counter[str] = Counter()
        """Requests by the engine that took them, moved ones included."""
        self._observers: tuple[AbstractContextManager[object], OnTokens] | None = None
        for engine in self.engines:
            self._connect(engine)

    # -- life cycle

    async def start(self) -> None:
        """Start the engines, and wait until they serve. Raises as ``EngineClient.start`` does, for
        the first that fails; then ``close`` ends the others."""
        if not self.spawns or not self.engines:
            for engine in self.engines:
                engine.join()
            if not self.may_sleep:
                await self._some_ready.wait()
        elif not self.may_sleep:
            await self._start_all()

    def wake(self) -> bool:
        """Start the engines that ``start`` has not; whether they will serve. One that fails to is
        tried again by the next call."""
        if self._closed or not self.spawns:
            return False
        if self._waking is None or (self._waking.done() and self._waking.exception() is not None):
            if self._waking is not None:
                logger.error("%s", self._waking.exception())
            self._waking = asyncio.create_task(self._start_all(), name="engine start")
        return True

    async def _start_all(self) -> None:
        starting = [asyncio.create_task(engine.start()) for engine in self.engines]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    def _connect(self, engine: EngineClient) -> None:
        engine.on_lost = partial(self._note_lost, engine)
        engine.on_begun = partial(self._note_begun, engine)
        engine.on_change = partial(self._on_change, engine)
        engine.on_report = partial(self._even_out, engine)
        if self._observers is not None:
            engine.around_outputs, engine.on_tokens = self._observers

    def add(self, name: str, transport: MakeTransport) -> EngineClient:
        """Use one more engine, which others have started, as soon as it is reached."""
        assert self._make is not None
        engine = self._make(name, transport)
        self.engines.append(engine)
        self._connect(engine)
        engine.join()
        return engine

    async def remove(self, engine: EngineClient, reason: str, *, has_left: bool = False) -> None:
        """Use an engine no more; its requests go on elsewhere. ``has_left``: in order, so that none
        of them is suspected of its end."""
        if has_left:
            engine.on_lost = lambda streams, _: self._note_lost(engine, streams, None)
        self.engines.remove(engine)
        self._router.forget(engine)
        self._drained.discard(engine)
        self.num_sent.pop(engine.name, None)
        engine.lose(reason)
        await engine.close()

    async def close(self) -> None:
        """End live streams with an error output, and stop the engines. Idempotent."""
        self._closed = True
        self.moves.close()
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.wait([self._waking])
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def observe(
        self, *, around_outputs: AbstractContextManager[object], on_tokens: OnTokens
    ) -> None:
        """Set the attributes of these names of all engines, also of those to come."""
        self._observers = around_outputs, on_tokens
        for engine in self.engines:
            self._connect(engine)

    @property
    def ready(self) -> bool:
        """Whether requests are served, if only once an engine has come for them."""
        return self.may_sleep or any(engine.ready for engine in self.engines)

    @property
    def has_served(self) -> bool:
        """Whether an engine was ready before, even if none is at the moment."""
        return self.may_sleep or self._some_ready.is_set()

    @property
    def router_hits(self) -> Mapping[bool, int]:
        """Requests whose cached tokens the router expected: by whether as many were found."""
        return self._router.num_found

    @property
    def info(self) -> Ready:
        """What a running engine has reported of itself. Raises ``EngineDead`` if none runs."""
        for engine in self.engines:
            if engine.ready:
                return engine.info
        raise self._no_engine()

    @property
    def stats(self) -> Stats:
        """The sums over all engines."""
        if len(self.engines) == 1:
            return self.engines[0].stats
        return sum_of([engine.stats for engine in self.engines])

    async def fetch_stats(self) -> Stats:
        """Fresh sums. Raises ``EngineDead`` if no engine runs."""
        _ = self.info
        running = [engine.fetch_stats() for engine in self.engines if engine.ready]
        found = await asyncio.gather(*running, return_exceptions=True)
        return sum_of([one for one in found if isinstance(one, Stats)])

    # -- requests

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Queue a request; never blocks. Raises ``EngineDead`` or ``QueueFull``, with nothing
        queued."""
        refusal: QueueFull | None = None
        for engine in self._candidates(request):
            try:
                stream = engine.submit(request)
            except QueueFull as error:
                refusal = refusal or error
            else:
                self._note_sent(request, engine)
                return stream
        if refusal is not None:
            raise refusal
        raise self._no_engine()

    async def check_queue(self, fair_key: str) -> None:
        """Raise ``QueueFull`` if each engine would refuse one more request of this tenant. Raises
        ``EngineDead``."""
        refusal: QueueFull | None = None
        for engine in sorted(self._serving, key=lambda one: one.load):
            try:
                await engine.check_queue(fair_key)
            except QueueFull as error:
                refusal = refusal or error
            except EngineDead:
                continue
            else:
                return
        raise refusal or self._no_engine()

    def _note_sent(self, request: GenerateRequest, engine: EngineClient) -> None:
        self.num_sent[engine.name] += 1
        if len(self.engines) > 1:
            self._router.sent(request, engine)

    def _note_begun(
        self, engine: EngineClient, stream: RequestStream, num_cached_tokens: int
    ) -> None:
        if stream.request_id == stream.request.request_id:  # It has not moved.
            self._router.heard(stream.request, engine, num_cached_tokens)

    def _note_lost(
        self, engine: EngineClient, streams: list[RequestStream], error: EngineDead | None
    ) -> None:
        if error is not None:
            self._router.forget(engine)
        self.moves.take(engine, streams, error)

    def _candidates(self, request: GenerateRequest) -> Iterable[EngineClient]:
        """The engines that may take a request, best first."""
        engines = self._serving
        if len(engines) < 2 or self._closed:
            return engines
        if not request.group:
            return self._router.ranked(request, engines)
        if self._group is None or self._group[0] != request.group:
            self._group = request.group, next(iter(self._router.ranked(request, engines)))
        first = self._group[1]
        return sorted(engines, key=lambda engine: (engine is not first, engine.load))

    @property
    def _serving(self) -> list[EngineClient]:
        """The engines that take requests: without the drained ones."""
        return [one for one in self.engines if one.ready and one not in self._drained]

    def _even_out(self, engine: EngineClient) -> None:
        """Have an engine that has nothing in its queue begin with what waits elsewhere. Each
        gateway takes back its own requests."""
        serving = self._serving
        if len(serving) > 1 and engine in serving and (room := engine.num_free_rows):
            busiest = max(serving, key=lambda one: one.num_queued)
            if busiest is not engine:
                busiest.take_back(room)

    def _no_engine(self) -> EngineDead:
        if not self.engines:
            return EngineDead("no engine has joined yet")
        try:
            _ = self.engines[0].info
        except EngineDead as error:
            return error
        return EngineDead("all engines are drained: undrain one")

    def _on_change(self, engine: EngineClient) -> None:
        if self._closed:
            return
        if any(engine.ready for engine in self.engines):
            self._some_ready.set()
        self._note_serving()
        self.moves.note_ready(engine, is_any=self.serving.is_set())

    def _note_serving(self) -> None:
        (self.serving.set if self._serving else self.serving.clear)()

    # -- draining

    def drain(self, engine: EngineClient) -> None:
        """Send an engine no more requests, and have its running ones go on elsewhere; they end
        where they are if no other engine serves."""
        self._drained.add(engine)
        self._note_serving()
        if self._serving:
            engine.evacuate()

    def undrain(self, engine: EngineClient) -> None:
        """Send an engine requests again."""
        self._drained.discard(engine)
        self._on_change(engine)

    @property
    def num_streams(self) -> int:
        """Requests of this process that have not ended."""
        return len(self.moves) + sum(engine.num_streams for engine in self.engines)

    def is_drained(self, engine: EngineClient) -> bool:
        return engine in self._drained

    def state_of(self, engine: EngineClient) -> EngineState:
        if not engine.ready:
            return "away"
        return "drained" if engine in self._drained else "ready"


class FleetAdapters:
    """Adapters are loaded and unloaded at all engines that run; others read them when needed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def load(self, adapter: AdapterRef) -> AdapterAnswer:
        """As ``AdapterCalls.load``. Raises what the first engine does if all fail, and
        ``AdapterLoadError`` if it does not fit one."""
        answers = await self._ask(lambda engine: engine.adapters.load(adapter))
        for answer in answers:
            if isinstance(answer, AdapterLoadError):
                raise answer
        return next(one for one in answers if isinstance(one, AdapterAnswer))

    async def unload(self, name: str) -> None:
        """As ``AdapterCalls.unload``. Raises what the first engine does if all fail."""
        await self._ask(lambda engine: engine.adapters.unload(name))

    async def _ask(self, question: Callable[[EngineClient], Any]) -> list[Any]:
        _ = self._fleet.info  # raises if none runs
        asked = [question(engine) for engine in self._fleet.engines if engine.ready]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failures = [one for one in answers if isinstance(one, BaseException)]
        if len(failures) == len(answers):
            raise failures[0]
        return answers


def sum_of(stats: Sequence[Stats]) -> Stats:
    """One report for several engines: sums, but the largest ``fairness_gap``."""
    if len(stats) < 2:
        return stats[0] if stats else Stats()
    total: Stats = _added(Stats, stats)
    by_tenant: dict[str, list[TenantStats]] = {}
    for tenant in (tenant for one in stats for tenant in one.tenants):
        by_tenant.setdefault(tenant.fair_key, []).append(tenant)
    return msgspec.structs.replace(
        total,
        fairness_gap=max((one.fairness_gap for one in stats), default=0.0),
        tenants=[
            msgspec.structs.replace(_added(TenantStats, found), fair_key=fair_key)
            for fair_key, found in by_tenant.items()
        ],
    )


def _added(kind: type[Any], records: Sequence[Any]) -> Any:
    """A record whose numbers, and lists of numbers, are the sums of those of all ``records``."""
    fields: dict[str, Any] = {}
    for field in kind.__struct_fields__:
        values = [getattr(record, field) for record in records]
        if all(isinstance(value, list) for value in values) and field != "tenants":
            length = max(map(len, values), default=0)
            padded = [value + [0] * (length - len(value)) for value in values]
            fields[field] = [sum(column) for column in zip(*padded, strict=True)]
        elif all(isinstance(value, int | float) for value in values):
            fields[field] = sum(values)
    return kind(**{"fair_key": "", **fields} if "fair_key" in kind.__struct_fields__ else fields)
