"""``sluice config``: what a settings file says, and whether it can be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from gateway.commands import database

if TYPE_CHECKING:
    from gateway.config import Config, Setting

app = typer.Typer(help="Settings: check a file, or show what is in force.", no_args_is_help=True)

_SECRET = re.compile(r"(?<=://)([^:/@]*):[^@/]*@")
ConfigFile = Annotated[Path, typer.Option("--config", help="Settings file.")]


@app.command()
def check(config: ConfigFile = database.CONFIG_FILE) -> None:
    """Read the file and the environment, and name the first key that is wrong."""
    from gateway import config as configuration

    configuration.load(config)
    print(f"{config} can be used. `sluice doctor` looks at what it names.")


@app.command()
def show(
    config: ConfigFile = database.CONFIG_FILE,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what differs from the defaults.")
    ] = False,
) -> None:
    """Print all settings in force, as TOML: those of the file, the environment, and defaults.

    Passwords in a DSN are left out.
    """
    from gateway import config as configuration

    loaded = configuration.load(config)
    shared = [one for one in configuration.settings() if not loaded.others or one.is_shared]
    for section, lines in groupby(_lines(loaded, shared, changed), lambda pair: pair[0]):
        print(f"\n[{section}]", *(line for _, line in lines), sep="\n")
    own = [one for one in configuration.settings() if loaded.others and not one.is_shared]
    for model in loaded.each if own else ():
        own.sort(key=lambda one: one.section == "engine")
        print("\n[[models]]", f"replicas = {model.fleet.replicas}", sep="\n")
        for section, lines in groupby(_lines(model, own, changed), lambda pair: pair[0]):
            if section == "engine":
                print("[models.engine]")
            if section != "fleet":
                print(*(line for _, line in lines), sep="\n")


def _lines(config: Config, settings: Sequence[Setting], changed: bool) -> Iterator[tuple[str, str]]:
    """(section, line) of each setting."""
    loaded = json.loads(msgspec.json.encode(config))
    for setting in settings:
        value = loaded[setting.section][setting.key]
        default = json.loads(setting.default) if setting.default else None
        if changed and value == default:
            continue
        unset = f"# {setting.key} is not set"
        yield setting.section, unset if value is None else f"{setting.key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(_SECRET.sub(r"\1:…@", value), ensure_ascii=False)
    if isinstance(value, Mapping):
        inner = (f"{json.dumps(key)} = {_toml(of)}" for key, of in value.items() if of is not None)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
