"""``sluice fleet``: the engines of all hosts."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import CONFIG_FILE, on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from gateway.fleet.placement.controller import ModelStatus
    from tenants.store import Store

app = typer.Typer(
    help="List the engines of all hosts, drain them, and have Ray place them.",
    no_args_is_help=True,
)

LOOK_S = 1.0

Ray = Annotated[bool, typer.Option("--ray", help="Place engines with Ray.")]
RayAddress = Annotated[
    str | None,
    typer.Argument(
        metavar="[ADDRESS]",
        help="Ray's head, as host:6379; by default that of the cluster this host belongs to.",
    ),
]
EngineId = Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's id.")]


@app.command("list")
@on_store
async def list_(store: Store) -> None:
    """List the engines that are registered."""
    columns = ("engine", "model", "state", "running", "waiting", "capacity", "address", "version")
    table = Table(*columns, "since", "node")
    for engine in await store.shared.list_engines():
        since = "" if engine.started_at is None else time_of(engine.started_at)
        cells = (engine.num_running, engine.num_waiting, engine.capacity)
        address = engine.address or "its own host"
        table.add_row(
            *(engine.id, engine.model, engine.condition, *map(str, cells)),
            *(address, engine.version, since, engine.node or ""),
        )
    table.show()


@app.command()
@on_store
async def drain(store: Store, engine: EngineId) -> None:
    """Send an engine no more requests; its running ones move to others, or end."""
    await _set_drained(store, engine, True)
    print(f"Told all gateways to drain {engine}.")


@app.command()
@on_store
async def undrain(store: Store, engine: EngineId) -> None:
    """Send a drained engine requests again."""
    await _set_drained(store, engine, False)
    print(f"Told all gateways to use {engine} again.")


@app.command()
@on_store
async def roll(
    store: Store,
    model: Annotated[str | None, typer.Option(help="Only engines of this model.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for an engine to be drained, and to be back.")
    ] = 900.0,
) -> None:
    """Replace all engines by new ones, one after the other: each is drained, so that its requests
    move, and started anew.

    A gateway's own engines start with the software that is installed then. Those of `sluice engine`
    are for their supervisor to restart, once they are drained: this command waits for that.
    """
    from gateway.fleet.roll import Roll

    await Roll(store.shared, timeout_s=timeout, say=print).run(model)


async def _set_drained(store: Store, engine: str, is_drained: bool) -> None:
    from gateway.errors import ConfigError

    if not await store.shared.drain_engine(engine, is_drained=is_drained):
        raise ConfigError(f"there is no engine {engine!r}; `sluice fleet list` shows all")


@app.command()
def up(
    ray: Ray = False,
    address: RayAddress = None,
    config: Annotated[
        Path, typer.Option(help="Settings file, which each node of the cluster has here, too.")
    ] = CONFIG_FILE,
) -> None:
    """Keep engines running on a Ray cluster, as many as models.min_replicas and max_replicas and
    the load say; a change of these settings is followed. To be run on a node of the cluster. Ctrl-C
    ends only the wait for the first ones."""
    import migrations
    from gateway import config as configuration
    from gateway.errors import ConfigError

    settings = configuration.load(config)
    dsn = settings.tenants.session_dsn
    if dsn is None:
        raise ConfigError(f"{config}: tenants.dsn is missing; set it to the gateways' PostgreSQL")
    asyncio.run(migrations.check(dsn))
    on_ray = _placement(ray)
    on_ray.connect(address)
    on_ray.up(config.resolve())
    told: set[str] = set()
    while True:
        status = on_ray.status()
        lines = [*_lines(status.models)] if status.error is None else [status.error]
        for line in lines:
            if line not in told:
                print(line, file=sys.stderr if status.error else sys.stdout, flush=True)
        told = set(lines)
        if status.error is None and all(map(_is_up, status.models)) and status.models:
            return
        time.sleep(LOOK_S)


@app.command()
def down(ray: Ray = False, address: RayAddress = None) -> None:
    """End all engines that `sluice fleet up` has placed, and what keeps them running."""
    on_ray = _placement(ray)
    on_ray.connect(address)
    print(f"Ended {on_ray.down()} engines.")


def _placement(ray: bool) -> ModuleType:
    from gateway.errors import ConfigError

    if not ray:
        raise ConfigError(
            "say who places the engines: --ray; without Ray, start `sluice engine` on each host"
        )
    from gateway.fleet.placement import on_ray

    return on_ray


def _lines(models: Sequence[ModelStatus]) -> Iterator[str]:
    for model in models:
        if model.num_wanted is None:
            yield f"{model.name}: another controller decides; end it with `sluice fleet down`"
        for replica, state in model.replicas:
            where = "" if replica.report is None else f" on {replica.report.node}"
            yield f"{replica.name}{where}: {state}"


def _is_up(model: ModelStatus) -> bool:
    num_ready = sum(state == "ready" for _, state in model.replicas)
    return model.num_wanted is not None and num_ready >= model.num_wanted
