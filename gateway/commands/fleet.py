"""``sluice fleet``: the engines of all hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import ConfigOption, DataDirOption, with_store

if TYPE_CHECKING:
    from tenants.shared import EngineRecord
    from tenants.store import Store

app = typer.Typer(help="List the engines of all hosts, and drain them.", no_args_is_help=True)

EngineId = Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's id.")]


@app.command("list")
def list_(config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """List the engines that are registered."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of

    async def work(store: Store) -> Sequence[EngineRecord]:
        return await store.shared.list_engines()

    columns = ("engine", "model", "state", "running", "waiting", "capacity", "address", "version")
    table = Table(*columns, "since")
    for engine in with_store(config, data_dir, work):
        since = "" if engine.started_at is None else time_of(engine.started_at)
        cells = (engine.num_running, engine.num_waiting, engine.capacity)
        address = engine.address or "its own host"
        table.add_row(
            *(engine.id, engine.model, engine.condition, *map(str, cells)),
            *(address, engine.version, since),
        )
    show(table)


@app.command()
def drain(engine: EngineId, config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Send an engine no more requests; its running ones move to others, or end."""
    _set_drained(engine, True, config, data_dir)
    print(f"Told all gateways to drain {engine}.")


@app.command()
def undrain(engine: EngineId, config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Send a drained engine requests again."""
    _set_drained(engine, False, config, data_dir)
    print(f"Told all gateways to use {engine} again.")


def _set_drained(
    engine: str, is_drained: bool, config: ConfigOption, data_dir: DataDirOption
) -> None:
    from gateway.errors import ConfigError

    async def work(store: Store) -> bool:
        return await store.shared.drain_engine(engine, is_drained=is_drained)

    if not with_store(config, data_dir, work):
        raise ConfigError(f"there is no engine {engine!r}; `sluice fleet list` shows all")
