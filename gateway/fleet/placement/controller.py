"""Keeps as many replicas of each model placed as ``autoscale`` decides.

    registry ──load──► decide ──► place a replica, or retire one: drain, wait, remove

It holds nothing that is not also elsewhere: what was decided is in PostgreSQL, what is placed and
what retires is in the cluster. So it may be killed at any moment and started anew. Of several
controllers of a database, one leads each model; the others wait for its lease to end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol
from uuid import uuid4

from gateway.fleet.placement.autoscale import Bounds, Load, Meter, Plan, decide
from gateway.fleet.placement.supervisor import Report, Spec
from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.shared import EngineRecord, SharedState

logger = logging.getLogger(__name__)

TICK_S = 2.0
LEASE = timedelta(seconds=15)
WANTED_S = 10.0
"""How long after a request that no engine could take there must be one."""
FRESH_S = 6.0
"""After so long the registry has counts from after an engine was drained."""
DRAIN_S = 60.0
"""How long an engine that retires may go on with its requests; then they move."""


class Placed(NamedTuple):
    """A replica of the cluster."""

    name: str
    model: str
    report: Report | None
    """None while its supervisor does not answer: no node has room for it, or its node was lost."""

    @property
    def is_retiring(self) -> bool:
        return self.report is not None and self.report.is_retiring


class Cluster(Protocol):
    """Where replicas run. Its methods block, for a few seconds at most but for ``remove``. They
    raise ``OSError`` while it cannot be reached."""

    def replicas(self) -> Sequence[Placed]: ...

    def place(self, spec: Spec) -> None:
        """Start a supervisor of this engine on a node with room for it, as soon as there is one:
        the node with the fewest engines of its model."""

    def retire(self, name: str, *, is_retiring: bool) -> None:
        """Have ``Placed.is_retiring`` say so."""

    def restart(self, name: str) -> None:
        """Have an engine leave the fleet, and start it anew."""

    def remove(self, name: str) -> None:
        """End an engine and its supervisor. Nothing of them is left."""


class Model(NamedTuple):
    """What is to run."""

    name: str
    bounds: Bounds
    command: tuple[str, ...]
    """As in ``Spec``; likewise the next."""
    resources: Mapping[str, float]


class ModelStatus(NamedTuple):
    name: str
    num_wanted: int | None
    """None while another controller decides."""
    replicas: Sequence[tuple[Placed, str]]
    """Each with its state."""


class _Course:
    """What a controller remembers of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.meter = Meter()
        self.plan: Plan | None = None
        """None while another controller leads it."""
        self.status: ModelStatus | None = None
        """None before the first step."""


class Controller:
    def __init__(
        self, models: Sequence[Model], shared: SharedState, cluster: Cluster, name: str
    ) -> None:
        """``name``: of its cluster. A controller that starts anew has the same one."""
        self._shared, self._cluster, self._name = shared, cluster, name
        self._courses = [_Course(model) for model in models]
        self._retiring_since: dict[str, float] = {}
        self._restarted: dict[str, int] = {}
        """The epoch in which each engine was told to start anew."""
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._outage = OutageLog(logger)

    @property
    def status(self) -> Sequence[ModelStatus]:
        """As of the last step."""
        found = [course.status for course in self._courses]
        return [status for status in found if status is not None]

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    await self.step(time.monotonic())
                except (StoreUnavailable, OSError) as error:
                    self._outage.failed("The replicas stay as they are: %s", error)
                else:
                    self._outage.succeeded("Replicas are placed and retired again")
                await asyncio.sleep(TICK_S)
        finally:
            await asyncio.gather(*self._removals.values(), return_exceptions=True)

    async def step(self, now: float) -> None:
        """Decide once, and begin what follows from it. Raises ``StoreUnavailable`` or ``OSError``
        with some of that left for the next step."""
        placed = await asyncio.to_thread(self._cluster.replicas)
        names = {one.name for one in placed}
        engines = await self._shared.list_engines()
        rows = {engine.id: engine for engine in engines if engine.id in names}
        for course in self._courses:
            own = [one for one in placed if one.model == course.model.name]
            await self._lead(course, own, rows, now)
        known = {course.model.name for course in self._courses}
        for one in placed:
            if one.model not in known:  # It was taken out of the settings.
                await self._retire(one, rows.get(one.name), now)

    async def _lead(
        self,
        course: _Course,
        placed: Sequence[Placed],
        rows: Mapping[str, EngineRecord],
        now: float,
    ) -> None:
        model, plan = course.model, course.plan
        decided = None if plan is None else plan.num_replicas
        scaling = await self._shared.lead_model(model.name, self._name, LEASE, decided)
        if scaling is None:
            if course.plan is not None:
                logger.warning("another controller decides about %s now", model.name)
            course.plan, course.status = None, ModelStatus(model.name, None, ())
            return
        if plan is None:
            num_replicas = scaling.num_replicas
            if num_replicas is None:
                num_replicas = sum(not one.is_retiring for one in placed)
            plan = Plan(num_replicas)
        is_wanted = scaling.wanted_s is not None and scaling.wanted_s < WANTED_S
        own = [rows[one.name] for one in placed if one.name in rows]
        load = course.meter.measure(own, now, is_wanted=is_wanted)
        course.plan = decide(model.bounds, plan, load, now)
        _log(model.name, plan, course.plan, load)
        await self._follow(course, placed, rows, now)

    async def _follow(
        self,
        course: _Course,
        placed: Sequence[Placed],
        rows: Mapping[str, EngineRecord],
        now: float,
    ) -> None:
        """Place what lacks; retire what is too much."""
        assert course.plan is not None
        model, wanted = course.model, course.plan.num_replicas
        placed = [one for one in placed if one.name not in self._removals]
        live = [one for one in placed if not one.is_retiring]
        retiring = [one for one in placed if one.is_retiring]
        states = [(one, _state(one, rows.get(one.name))) for one in placed]
        course.status = ModelStatus(model.name, wanted, states)
        while len(live) < wanted and retiring:
            live.append(one := retiring.pop())
            await self._take_back(one)
        for _ in range(wanted - len(live)):
            name = f"{model.name}-{uuid4().hex[:8]}"
            logger.info("placing %s", name)
            spec = Spec(name, model.name, model.command, model.resources)
            await asyncio.to_thread(self._cluster.place, spec)
        for one in live:
            await self._restart(one.name, rows.get(one.name))
        live.sort(key=lambda one: _importance(rows.get(one.name)))
        for one in (*live[: max(0, len(live) - wanted)], *retiring):
            await self._retire(one, rows.get(one.name), now)

    async def _restart(self, name: str, row: EngineRecord | None) -> None:
        """Do what ``sluice fleet roll`` asks for, once."""
        if row is None or not row.is_to_restart or self._restarted.get(name) == row.epoch:
            return
        logger.info("starting %s anew", name)
        self._restarted[name] = row.epoch
        await asyncio.to_thread(self._cluster.restart, name)

    async def _take_back(self, one: Placed) -> None:
        logger.info("%s stays", one.name)
        self._retiring_since.pop(one.name, None)
        await asyncio.to_thread(self._cluster.retire, one.name, is_retiring=False)
        await self._shared.drain_engine(one.name, is_drained=False)

    async def _retire(self, one: Placed, row: EngineRecord | None, now: float) -> None:
        """Go on with the end of a replica: mark it, drain it, remove it."""
        if one.name in self._removals:
            return
        if not one.is_retiring and one.report is not None:
            logger.info("retiring %s", one.name)
            await asyncio.to_thread(self._cluster.retire, one.name, is_retiring=True)
        since = self._retiring_since.setdefault(one.name, now)
        if row is not None and row.condition in ("ready", "drained"):
            if not row.is_drained:
                self._retiring_since[one.name] = now
                await self._shared.drain_engine(one.name, is_drained=True)
                return
            is_busy = now - since < FRESH_S or row.num_running + row.num_waiting > 0
            if is_busy and now - since < DRAIN_S:
                return
        self._removals[one.name] = asyncio.create_task(self._remove(one.name), name="removal")

    async def _remove(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._cluster.remove, name)
            logger.info("%s has ended", name)
        except OSError as error:
            logger.warning("%s could not be ended, and will be: %s", name, error)
        finally:
            del self._removals[name]
            self._retiring_since.pop(name, None)
            self._restarted.pop(name, None)


def _importance(row: EngineRecord | None) -> tuple[bool, int, str]:
    """Those that are retired first sort first: what does not serve, then the least busy."""
    if row is None or row.condition != "ready":
        return False, 0, ""
    return True, row.num_running + row.num_waiting, row.id


def _state(one: Placed, row: EngineRecord | None) -> str:
    if one.report is None:
        return "waiting for a node with room"
    if one.is_retiring:
        return "retiring"
    if row is not None and row.condition != "lost":
        return row.condition
    return f"starting again, {one.report.last_words}" if one.report.last_words else "starting"


def _log(model: str, before: Plan, after: Plan, load: Load) -> None:
    if before.num_replicas != after.num_replicas:
        logger.info(
            "%s: from %d replicas to %d; %d have %d requests running, %d waiting, %.3g/s coming "
            "and %.3g/s beginning%s",
            *(model, before.num_replicas, after.num_replicas, load.num_ready, load.num_running),
            *(load.num_waiting, load.arrivals_per_s, load.admitted_per_s),
            ", and others came while none served" if load.is_wanted else "",
        )
