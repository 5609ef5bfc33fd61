"""Replicas are placed and retired as decided, whatever dies meanwhile. The cluster here has nodes
without processes; ``tests/e2e/test_ray.py`` has real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from gateway.fleet.placement.autoscale import Bounds
from gateway.fleet.placement.controller import DRAIN_S, FRESH_S, Controller, Model, Placed
from gateway.fleet.placement.supervisor import Report, Spec
from tenants.errors import StoreUnavailable
from tests.memory_store.store import MemoryStore
from tests.tenants.test_shared import make_engine

pytestmark = pytest.mark.asyncio
DAY = timedelta(days=1)
MODEL = Model("demo", Bounds(1, 3, 2.0, 4.0, 60.0), ("engine",), {"CPU": 1.0})


class Nodes:
    """A ``Cluster`` whose engines serve as soon as they are placed, and do what a test says."""

    def __init__(self, store: MemoryStore, room: int = 9) -> None:
        self.shared = store.shared
        self.room = room
        """How many engines there is room for."""
        self.names: dict[str, bool] = {}
        """Whether each retires."""
        self.removed: list[str] = []
        self.restarted: list[str] = []
        self.is_away = False
        self.load: dict[str, Any] = {}

    def replicas(self) -> Sequence[Placed]:
        if self.is_away:
            raise OSError("no head")
        placed = []
        for number, (name, is_retiring) in enumerate(self.names.items()):
            report = Report("n", "node", 1, 1, "", is_retiring) if number < self.room else None
            placed.append(Placed(name, name.rpartition("-")[0], report))
        return placed

    def place(self, spec: Spec) -> None:
        assert spec.name not in self.names
        self.names[spec.name] = False

    def retire(self, name: str, *, is_retiring: bool) -> None:
        self.names[name] = is_retiring

    def restart(self, name: str) -> None:
        self.restarted.append(name)

    def remove(self, name: str) -> None:
        del self.names[name]
        self.removed.append(name)

    async def register(self) -> None:
        """As the engines that run do; those that were removed have left."""
        for name in list(self.names)[: self.room]:
            engine = make_engine(name, model=name.rpartition("-")[0], **self.load)
            assert await self.shared.register_engine(engine, DAY) == "ok"
        for name in self.removed:
            await self.shared.forget_engine(name, 10)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def steps(
    controller: Controller, nodes: Nodes, start: float, end: float, every: float = 2.0
) -> None:
    now = start
    while now < end:
        await nodes.register()
        await controller.step(now)
        await asyncio.gather(*controller._removals.values())
        now += every


BUSY = {"num_running": 8, "num_waiting": 100}


async def test_it_places_what_lacks_and_retires_what_is_too_much(store: MemoryStore) -> None:
    nodes = Nodes(store)
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 4)
    assert len(nodes.names) == 1
    nodes.load = BUSY
    await steps(controller, nodes, 4, 20)
    assert len(nodes.names) == 3
    nodes.load = {}
    await steps(controller, nodes, 20, 300)
    assert len(nodes.names) == 1
    assert len(nodes.removed) == 2
    assert [model.num_wanted for model in controller.status] == [1]
    (left,) = await store.shared.list_engines()
    assert not left.is_drained


async def test_an_engine_is_drained_before_it_is_ended(store: MemoryStore) -> None:
    nodes = Nodes(store)
    bounds = MODEL.bounds._replace(min_replicas=2)
    first = Controller([MODEL._replace(bounds=bounds)], store.shared, nodes, "one")
    await steps(first, nodes, 0, 4)
    nodes.load = {"num_running": 1}
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 100, 164)
    assert sorted(nodes.names.values()) == [False, True]
    drained = [engine.id for engine in await store.shared.list_engines() if engine.is_drained]
    assert [name for name, is_retiring in nodes.names.items() if is_retiring] == drained
    assert not nodes.removed  # It still has a request.
    nodes.load = {}
    await steps(controller, nodes, 164, 164 + FRESH_S + 4)
    assert nodes.removed == drained


async def test_requests_that_do_not_end_move_after_a_while(store: MemoryStore) -> None:
    nodes = Nodes(store)
    nodes.names = {"demo-00000000": True, "demo-00000001": False}
    nodes.load = {"num_running": 1}
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, DRAIN_S - 2)
    assert not nodes.removed
    await steps(controller, nodes, DRAIN_S - 2, DRAIN_S + 10)
    assert nodes.removed == ["demo-00000000"]


async def test_one_that_retires_is_taken_back_before_another_is_placed(store: MemoryStore) -> None:
    nodes = Nodes(store)
    nodes.names = {"demo-00000000": True}
    await nodes.register()
    await store.shared.drain_engine("demo-00000000", is_drained=True)
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 2)
    assert nodes.names == {"demo-00000000": False}
    (engine,) = await store.shared.list_engines()
    assert not engine.is_drained


@pytest.mark.parametrize("seed", range(3))
async def test_controllers_killed_at_any_moment_end_with_the_same(
    store: MemoryStore, seed: int
) -> None:
    """Each knows what the one before decided, and nothing else."""
    nodes, now = Nodes(store), 0.0
    for number in range(12):
        controller = Controller([MODEL], store.shared, nodes, "one")
        nodes.load = BUSY if number < 6 else {}
        task = asyncio.create_task(steps(controller, nodes, now, now + 14.0))
        for _ in range((7 * seed + 3 * number) % 40):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, *controller._removals.values(), return_exceptions=True)
        now += 14.0
        assert len(nodes.names) <= 3
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, now, now + 400)
    assert len(nodes.names) == 1
    assert [engine.condition for engine in await store.shared.list_engines()] == ["ready"]


async def test_of_two_controllers_one_decides(store: MemoryStore) -> None:
    """As on two clusters that were given the same database."""
    one, two = Nodes(store), Nodes(store)
    first = Controller([MODEL], store.shared, one, "one")
    second = Controller([MODEL], store.shared, two, "two")
    await steps(first, one, 0, 4)
    await steps(second, two, 0, 4)
    assert len(one.names) == 1
    assert not two.names
    assert [model.num_wanted for model in second.status] == [None]
    await store.shared.lead_model("demo", "one", timedelta(0))  # which has died
    await steps(second, two, 4, 8)
    assert len(two.names) == 1
    await first.step(8.0)
    assert [model.num_wanted for model in first.status] == [None]
    assert len(one.names) == 1  # what serves is not torn down


async def test_nothing_changes_while_the_store_or_the_cluster_is_away(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(store)
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 4)
    before = dict(nodes.names)
    nodes.is_away = True
    with pytest.raises(OSError, match="no head"):
        await controller.step(4.0)
    nodes.is_away = False

    async def away(*_: object) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store.shared, "lead_model", away)
        with pytest.raises(StoreUnavailable):
            await controller.step(6.0)
    await steps(controller, nodes, 8, 12)
    assert nodes.names == before


async def test_it_wakes_a_model_that_nobody_serves(store: MemoryStore) -> None:
    nodes = Nodes(store)
    sleeping = MODEL._replace(bounds=MODEL.bounds._replace(min_replicas=0))
    controller = Controller([sleeping], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 6)
    assert not nodes.names
    assert await store.shared.want_model("demo")
    await steps(controller, nodes, 6, 10)
    assert len(nodes.names) == 1


async def test_replicas_without_room_wait_and_are_given_up_first(store: MemoryStore) -> None:
    nodes = Nodes(store, room=1)
    bounds = MODEL.bounds._replace(min_replicas=3)
    controller = Controller([MODEL._replace(bounds=bounds)], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 4)
    states = [state for _, state in controller.status[0].replicas]
    assert states == ["ready", "waiting for a node with room", "waiting for a node with room"]
    serving = next(iter(nodes.names))
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 4, 100)
    assert list(nodes.names) == [serving]


async def test_a_roll_starts_engines_anew_once(store: MemoryStore) -> None:
    nodes = Nodes(store)
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 4)
    (name,) = nodes.names
    assert await store.shared.restart_engine(name, 10)
    await steps(controller, nodes, 4, 12)
    assert nodes.restarted == [name]


async def test_models_that_the_settings_lack_go(store: MemoryStore) -> None:
    nodes = Nodes(store)
    nodes.names = {"other-00000000": False}
    controller = Controller([MODEL], store.shared, nodes, "one")
    await steps(controller, nodes, 0, 30)
    assert nodes.removed == ["other-00000000"]
