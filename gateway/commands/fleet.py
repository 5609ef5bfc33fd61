"""``sluice fleet``: the engines of all hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import on_store

if TYPE_CHECKING:
    from tenants.store import Store

app = typer.Typer(help="List the engines of all hosts, and drain them.", no_args_is_help=True)

EngineId = Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's id.")]


@app.command("list")
@on_store
async def list_(store: Store) -> None:
    """List the engines that are registered."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of

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
    show(table)


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
