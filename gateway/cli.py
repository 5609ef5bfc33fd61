"""The console script ``sluice``.

A command imports what it needs when it runs, so that ``--help`` is fast. Every failure ends with
one line on stderr, which names the cause and what to do, and with an exit code: 2 for a wrong
command line, 1 for all others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.commands import (
    adapter,
    bench,
    database,
    doctor,
    fleet,
    key,
    mcp,
    models,
    operations,
    project,
    schema,
    settings,
    tenant,
    webhook,
)
from gateway.version import commit, version

app = typer.Typer(
    name="sluice",
    help="An asyncio streaming gateway for multi-tenant chat, with its own inference engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Url = Annotated[str | None, typer.Option(help="The server, as http://host:port.")]
DataDir = Annotated[Path, typer.Option(help="Folder of the demo: database, secrets and keys.")]


def _show_version(asked: bool) -> None:
    if asked:
        print(" ".join(filter(None, ("sluice", version(), commit()))))
        raise typer.Exit


@app.callback()
def _before_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options before any command."""


@app.command()
def demo(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on, by default 8000; 0: a free one."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, by default 127.0.0.1.")
    ] = None,
    data_dir: DataDir = database.DATA_DIR,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="File to write once everything works: JSON {url, ws_url, api_key, …}."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model's folder or hub id, in place of the bundled one.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file, as for serve, but without a database.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Engines of the model; by default 1.")
    ] = None,
    replay: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Answer with a fixed text at this many tokens/s, without the model."
        ),
    ] = None,
) -> None:
    """Start everything: database, engine, gateway and chat page, on the bundled model."""
    from gateway.commands.demo import Demo, configure

    env = _environment(
        server_port=port,
        server_host=host,
        engine_model=_found(model),
        fleet_replicas=replicas,
    )
    settings = configure(config, data_dir, env=env)
    Demo(
        settings,
        data_dir=data_dir,
        ready_file=ready_file,
        replay_tokens_per_s=replay,
    ).run()


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="Settings file.")] = database.CONFIG_FILE,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Gateway processes; by default server.workers.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=0, help="Engines of the model; by default fleet.replicas. 0: others join."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model's folder or hub id, in place of engine.model.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit, in place of engine.revision.")
    ] = None,
) -> None:
    """Start the gateway and its engine with the settings of a file.

    The first start on a GPU also compiles kernels, half a minute, and measures which matrix
    products are fastest for the model, 9 to 14 s for one of 8B parameters. Both are kept in
    SLUICE_KERNEL_CACHE, by default ~/.cache/sluice/kernels.
    """
    import msgspec

    import migrations
    from gateway import config as configuration
    from gateway.commands import load_progress
    from gateway.processes import server, supervisor

    env = _environment(
        engine_model=_found(model), engine_revision=revision, fleet_replicas=replicas
    )
    settings = configuration.load(config, env=env)
    if settings.tenants.session_dsn is not None:
        asyncio.run(migrations.check(settings.tenants.session_dsn))
    if workers is not None:
        settings = msgspec.structs.replace(
            settings, server=msgspec.structs.replace(settings.server, workers=workers)
        )
    run = server.run if settings.server.workers == 1 else supervisor.run
    run(settings, on_progress=load_progress.reporter(logging.getLogger("sluice").info))


@app.command()
def engine(
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file, as the gateways have; by default sluice.toml, if there."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's folder or hub id, for engine.model, or the name of one of the settings."
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(help="The gateways' PostgreSQL, postgresql://…, in place of tenants.dsn."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="This host's address for gateways, or fleet.engine_host.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port for gateways, or fleet.engine_port.")
    ] = None,
) -> None:
    """Start an engine that gateways on any host use. It joins them through PostgreSQL, and needs
    their secrets file."""
    import migrations
    from gateway import config as configuration
    from gateway.commands import load_progress
    from gateway.processes import engine_host

    if config is None and database.CONFIG_FILE.exists():
        config = database.CONFIG_FILE
    is_one_of_several = configuration.has_several(config)
    env = _environment(
        engine_model=None if is_one_of_several else _found(model),
        tenants_dsn=join,
        fleet_engine_host=host,
        fleet_engine_port=port,
    )
    settings = configuration.load(config, env=env)
    if is_one_of_several:
        settings = settings.one(model)
    if settings.tenants.session_dsn is not None:
        asyncio.run(migrations.check(settings.tenants.session_dsn))
    engine_host.run(settings, on_progress=load_progress.reporter(logging.getLogger("sluice").info))


def _environment(**settings: str | int | None) -> dict[str, str]:
    """The environment, with variables for settings of the command line, named ``section_key``."""
    given = {key: value for key, value in settings.items() if value is not None}
    return {**os.environ, **{f"SLUICE_{key.upper()}": json.dumps(given[key]) for key in given}}


def _found(model: str | None) -> str | None:
    """The absolute path of a model's folder, because the settings would take it relative to their
    own; or a hub id as it is."""
    return str(Path(model).resolve()) if model is not None and Path(model).exists() else model


@app.command()
def chat(
    question: Annotated[
        str | None, typer.Argument(help="Ask only this; without it, hold a conversation.")
    ] = None,
    url: Url = None,
    key: database.ApiKey = None,
    data_dir: DataDir = database.DATA_DIR,
    model: Annotated[str | None, typer.Option(help="Model; by default the one served.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
) -> None:
    """Chat in the terminal over the WebSocket. Ctrl-C stops an answer, a second one leaves."""
    from gateway.commands.chat_client import ChatClient, Options

    address = database.address(url, key, data_dir)
    options = Options(model=model, max_tokens=max_tokens, temperature=temperature)
    with ChatClient.connect(address, options) as client:
        client.ask_once(question) if question is not None else client.converse()


app.command("bench")(bench.bench)
app.command("migrate")(database.migrate)
app.command()(doctor.doctor)
app.add_typer(settings.app, name="config")
app.command()(operations.bootstrap)
app.add_typer(models.app, name="models")
app.add_typer(tenant.app, name="tenant")
app.add_typer(project.app, name="project")
app.add_typer(key.app, name="key")
app.add_typer(adapter.app, name="adapter")
app.add_typer(mcp.app, name="mcp")
app.add_typer(fleet.app, name="fleet")
app.add_typer(webhook.app, name="webhook")
app.add_typer(schema.app, name="schema")
app.command()(operations.usage)
app.add_typer(operations.streams, name="stream")
app.command()(operations.audit)


def main() -> NoReturn:
    """The entry point of the console script. Never returns, and never shows a traceback."""
    try:
        code = app(prog_name="sluice", standalone_mode=False)
    except typer.TyperException as exc:
        _fail(_usage(exc), exc.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except Exception as exc:
        if not isinstance(exc, _foreseen()):
            logging.getLogger(__name__).debug("unforeseen", exc_info=exc)
            _fail(f"unexpected {type(exc).__name__}: {exc}; please report it")
        _fail(_with_mend(exc))
    sys.exit(code if isinstance(code, int) else 0)


def _foreseen() -> tuple[type[Exception], ...]:
    """Errors whose message is written for the user of the command."""
    from engine.errors import EngineError
    from gateway.errors import SetupError
    from tenants.errors import TenantsError

    return (SetupError, EngineError, TenantsError, OSError)


def _with_mend(exc: Exception) -> str:
    from tenants.errors import InvalidValue, StoreUnavailable

    if isinstance(exc, InvalidValue) and exc.field == "dsn":
        return f"tenants.{exc}"
    if isinstance(exc, StoreUnavailable):
        mend = "correct" if "refuses us" in str(exc) else "start it, or correct"
        return f"{exc}; {mend} tenants.dsn"
    return str(exc)


def _usage(exc: typer.TyperException) -> str:
    context = getattr(exc, "ctx", None)
    command = "sluice" if context is None else context.command_path
    message = exc.format_message().rstrip(".")
    return message and f"{message}; `{command} --help` lists what there is"


def _fail(message: str, code: int = 1) -> NoReturn:
    """Print the message, unless it is empty because help was shown, and exit."""
    if message:
        print(f"sluice: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
