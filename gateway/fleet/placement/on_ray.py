"""Places replicas with Ray, and runs their controller there: the only module that imports Ray.

    sluice fleet up ──► controller, an actor ──► for each replica a placement group of one bundle,
                                                 and in it a supervisor, an actor ──► sluice engine

All actors are detached, named, and started again without end, on another node if theirs is lost. A
placement group has all resources of one engine, which are on one node: its ranks are children of
its first process. Ray carries no tokens and no secrets: each node has the settings and secrets as
if engines were started there by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway import config as configuration
from gateway import logs
from gateway.config import Config
from gateway.errors import ConfigError, SetupError
from gateway.fleet.placement.controller import Controller, ModelStatus, Placed
from gateway.fleet.placement.needs import choose_node, model_of, models_of, until_changed
from gateway.fleet.placement.supervisor import STOP_S, Report, Spec, Supervisor
from tenants.errors import TenantsError
from tenants.store import Store

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError:
    raise ConfigError(
        "Ray is not installed here; `pip install 'sluice[ray]'` brings it, on each node"
    ) from None

logger = logging.getLogger(__name__)

NAMESPACE = "sluice"
CONTROLLER = "controller"
ANSWER_S = 2.0
"""How long supervisors may take to report."""
RETRY_S = 5.0
_REPLICA = re.compile(r"(.+)-[0-9a-f]{8}")
_FOR_EVER: Mapping[str, Any] = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_concurrency": 4,
}


class Status(NamedTuple):
    """What the controller says."""

    error: str | None
    """What keeps it from deciding."""
    models: Sequence[ModelStatus]


def connect(address: str | None) -> None:
    """Join a cluster that runs, from one of its nodes. Raises ``SetupError``."""
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "on this host" if address is None else f"at {address}"
        raise SetupError(
            f"no Ray cluster is found {where} ({str(error).splitlines()[0]}); start one with "
            "`ray start --head`, and join it from each further host with `ray start --address`"
        ) from None


def up(config_file: Path) -> None:
    """Start the controller; one that runs already gives way. Replicas stay as they are."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(CONTROLLER), no_restart=True)
        _wait_until_gone(CONTROLLER)
    made = ray.remote(ControllerActor).options(name=CONTROLLER, num_cpus=0, **_FOR_EVER)
    made.remote(str(config_file))


def status() -> Status:
    """Raises ``SetupError`` if no controller answers."""
    try:
        found: Status = ray.get(ray.get_actor(CONTROLLER).status.remote(), timeout=30)
    except (ValueError, RayError) as error:
        raise SetupError(f"the controller does not answer: {error}") from None
    return found


def down() -> int:
    """End the controller and all replicas; returns how many there were."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(CONTROLLER), no_restart=True)
    cluster = RayCluster()
    names = [one.name for one in cluster.replicas()]
    threads = [threading.Thread(target=cluster.remove, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cluster.replicas()  # removes groups without a supervisor
    return len(names)


class RayCluster:
    """The ``Cluster`` that this process has joined."""

    def __init__(self) -> None:
        self._asked: dict[str, ray.ObjectRef] = {}
        """Questions to supervisors that they have not answered."""
        self._resources: dict[str, Mapping[str, float]] = {}
        """What each takes of its node, as far as this process has placed it."""
        self._nodes: dict[str, str] = {}
        """Where each replica is, or is to be."""

    def replicas(self) -> Sequence[Placed]:
        try:
            names = [name for name in ray.util.list_named_actors() if _REPLICA.fullmatch(name)]
            self._remove_groups_without(names)
            reports = self._ask(names)
        except RayError as error:
            raise OSError(f"Ray does not answer: {error}") from error
        self._nodes = {name: node for name, node in self._nodes.items() if name in names}
        self._nodes.update({name: report.node_id for name, report in reports.items()})
        return [Placed(name, model_of(name), reports.get(name)) for name in names]

    def _ask(self, names: Sequence[str]) -> dict[str, Report]:
        for name in self._asked.keys() - set(names):
            del self._asked[name]
        for name in names:
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # It has ended meanwhile.
                    self._asked[name] = ray.get_actor(name).report.remote()
        names_of = {reference: name for name, reference in self._asked.items()}
        if not names_of:
            return {}
        answered, _ = ray.wait(list(names_of), num_returns=len(names_of), timeout=ANSWER_S)
        reports = {}
        for reference in answered:
            name = names_of[reference]
            del self._asked[name]
            try:
                reports[name] = ray.get(reference)
            except RayError as error:
                logger.debug("%s does not report: %s", name, error)
        return reports

    def _remove_groups_without(self, names: Sequence[str]) -> None:
        """A controller may have been killed between the two steps of ``place``."""
        for group in ray.util.placement_group_table().values():
            prefix, _, name = group["name"].partition("/")
            if prefix == NAMESPACE and name not in names and group["state"] != "REMOVED":
                _remove_group(name)

    def place(self, spec: Spec) -> None:
        node_id = choose_node(spec, ray.nodes(), self._nodes, self._resources)
        try:
            group = ray.util.placement_group(
                [dict(spec.resources)],
                strategy="STRICT_PACK",
                name=f"{NAMESPACE}/{spec.name}",
                lifetime="detached",
                _soft_target_node_id=node_id,
            )
            resources = dict(spec.resources)
            ray.remote(SupervisorActor).options(
                name=spec.name,
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
                **_FOR_EVER,
            ).remote(spec)
        except RayError as error:
            raise OSError(f"Ray does not place {spec.name}: {error}") from error
        self._resources[spec.name] = spec.resources
        if node_id is not None:
            self._nodes[spec.name] = node_id

    def retire(self, name: str, *, is_retiring: bool) -> None:
        self._tell(name, "retire", is_retiring)

    def restart(self, name: str) -> None:
        self._tell(name, "restart")

    def _tell(self, name: str, method: str, *arguments: Any) -> None:
        try:
            told = getattr(ray.get_actor(name), method).remote(*arguments)
            ray.get(told, timeout=ANSWER_S)
        except (ValueError, RayError) as error:
            raise OSError(f"{name} does not answer: {error}") from error

    def remove(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # There is none of that name any more.
            actor = ray.get_actor(name)
            try:
                is_placed = ray.get(actor.report.remote(), timeout=ANSWER_S) is not None
                if is_placed:
                    ray.get(actor.stop.remote(), timeout=2 * STOP_S)
            except RayError as error:
                logger.debug("%s does not answer, and is killed: %s", name, error)
            ray.kill(actor, no_restart=True)
            _wait_until_gone(name)
        _remove_group(name)
        self._resources.pop(name, None)


def _remove_group(name: str) -> None:
    with contextlib.suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group(f"{NAMESPACE}/{name}"))


def _wait_until_gone(name: str) -> None:
    """A name is free some moments after its actor was killed."""
    for _ in range(100):
        if name not in ray.util.list_named_actors():
            return
        time.sleep(0.1)


class SupervisorActor(Supervisor):
    """A ``Supervisor`` that finds out where it is."""

    def __init__(self, spec: Spec) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        super().__init__(spec, node_id=node_id, host=ray.util.get_node_ip_address())


class ControllerActor:
    """Runs a ``Controller`` on an event loop in a thread of its own. It starts anew when something
    stops it: Ray would not start an actor again whose constructor fails. (With a coroutine among
    its methods, Ray would run all of them on one event loop.)"""

    def __init__(self, config_file: str) -> None:
        self._config_file = Path(config_file)
        self._controller: Controller | None = None
        self._error: str | None = None
        logs.configure("info", "text")
        threading.Thread(target=self._keep, name="controller", daemon=True).start()

    def status(self) -> Status:
        return Status(self._error, [] if self._controller is None else self._controller.status)

    def _keep(self) -> None:
        while True:
            try:
                config = configuration.load(self._config_file)
                asyncio.run(_control(config, self._config_file, self._begin))
            except (SetupError, TenantsError, OSError) as error:
                self._error = str(error)
                logger.error("nothing is placed: %s", error)
            except Exception:
                self._error = "something unforeseen happened: see the log of the controller"
                logger.exception("the controller starts anew")
            time.sleep(RETRY_S)

    def _begin(self, controller: Controller) -> None:
        self._controller, self._error = controller, None


async def _control(
    config: Config, config_file: Path, on_begin: Callable[[Controller], None]
) -> None:
    """Run a controller until the settings change."""
    if config.tenants.dsn is None:
        raise ConfigError("tenants.dsn is missing; set it to the PostgreSQL to use")
    pooled = config.tenants.transaction_pooling
    store = await Store.connect(config.tenants.dsn, max_size=2, is_pooled=pooled)
    try:
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        models = models_of(config, config_file, has_gpus=has_gpus)
        name = f"ray {ray.get_runtime_context().get_session_name()}"
        on_begin(controller := Controller(models, store.shared, RayCluster(), name))
        running = asyncio.create_task(controller.run())
        watching = asyncio.create_task(until_changed(config, config_file))
        done, _ = await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        for task in (running, watching):
            task.cancel()
        await asyncio.gather(running, watching, return_exceptions=True)
        for task in done:
            task.result()
    finally:
        await store.close()
