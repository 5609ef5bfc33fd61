"""The database, secrets and key that a command uses, and ``sluice migrate``.

In a folder with a ``sluice.toml`` they are those of that file; otherwise the demo's, in
``.sluice``.
"""

from __future__ import annotations

import asyncio
import functools
import getpass
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, get_type_hints

import typer

CONFIG_FILE = Path("sluice.toml")
DATA_DIR = Path(".sluice")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file; by default sluice.toml, if there.")
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of a demo; by default .sluice, if there.")
]

ApiKey = Annotated[
    str | None,
    typer.Option(envvar="SLUICE_API_KEY", help="API key; by default that of the demo here."),
]


@dataclass(frozen=True)
class Database:
    """A database that is running, and the file of its secrets."""

    dsn: str
    secrets_file: Path


class Address(NamedTuple):
    """A server and the key to use there."""

    url: str
    """``http://host:port``, without a slash at its end."""
    key: str


@contextmanager
def opened(config: Path | None, data_dir: Path | None) -> Iterator[Database]:
    """The database of a settings file, or of a demo, whose PostgreSQL runs until the block ends.

    Raises ``SetupError``, ``TenantsError``.
    """
    from gateway.errors import ConfigError

    if config is not None and data_dir is not None:
        raise ConfigError("--config and --data-dir name two databases; give one of them")
    if config is None and data_dir is None:
        config = CONFIG_FILE if CONFIG_FILE.exists() else None
        data_dir = DATA_DIR if config is None and DATA_DIR.exists() else None
    if config is not None:
        yield _configured(config)
    elif data_dir is not None:
        with _embedded(data_dir) as database:
            yield database
    else:
        raise ConfigError(
            f"neither {CONFIG_FILE} nor {DATA_DIR} is here; name one with --config or --data-dir, "
            "or run `sluice demo` first"
        )


def _configured(path: Path) -> Database:
    from gateway import config as configuration
    from gateway.errors import ConfigError

    tenants = configuration.load(path).tenants
    if tenants.session_dsn is None:
        raise ConfigError(f"{path}: tenants.dsn is missing; set it to the database's address")
    return Database(tenants.session_dsn, Path(tenants.secrets_file))


@contextmanager
def _embedded(data_dir: Path) -> Iterator[Database]:
    from gateway.commands.data_dir import DataDir
    from gateway.errors import ConfigError
    from tenants.embedded import EmbeddedPostgres

    folder = DataDir(data_dir)
    if not folder.secrets_file.exists():
        raise ConfigError(f"{data_dir} is not the folder of a demo; `sluice demo` makes one")
    with EmbeddedPostgres(folder.postgres) as postgres:
        yield Database(postgres.start(), folder.secrets_file)


def on_store(work: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A command of an asynchronous function that takes a ``store`` and, to make keys, a ``pepper``.

    The command has the options ``--config`` and ``--data-dir`` in their place, and raises as
    ``opened`` does.
    """

    @functools.wraps(work)
    def command(*, config: Path | None, data_dir: Path | None, **arguments: object) -> None:
        from gateway import secrets

        with opened(config, data_dir) as database:
            if "pepper" in asked:
                arguments["pepper"] = secrets.load(database.secrets_file).key_pepper
            asyncio.run(_on(database, functools.partial(work, **arguments)))

    hints = get_type_hints(work, localns={"Store": object}, include_extras=True)
    asked = inspect.signature(work).parameters
    shown = [
        one.replace(annotation=hints[name])
        for name, one in asked.items()
        if name not in ("store", "pepper")
    ]
    for name, annotation in (("config", ConfigOption), ("data_dir", DataDirOption)):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        shown.append(inspect.Parameter(name, kind, default=None, annotation=annotation))
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in shown}
    return command


async def _on(database: Database, work: Callable[..., Awaitable[None]]) -> None:
    import migrations
    from tenants.audit import acting_as
    from tenants.store import Store

    await migrations.check(database.dsn)
    store = await Store.connect(database.dsn, max_size=1)
    try:
        with acting_as(f"command line ({getpass.getuser()})"):
            await work(store=store)
    finally:
        await store.close()


def migrate(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    new_secrets: Annotated[
        bool,
        typer.Option(
            "--new-secrets",
            help="Make other secrets for a database whose own are lost: no key works any more.",
        ),
    ] = False,
) -> None:
    """Bring the database's schema up to date; make the server's secrets if there are none."""
    import migrations
    from gateway import secrets
    from tenants.store import Store

    async def has_keys(dsn: str) -> bool:
        store = await Store.connect(dsn, max_size=1)
        try:
            return await store.has_keys()
        finally:
            await store.close()

    with opened(config, data_dir) as database:
        before, after = asyncio.run(migrations.upgrade(database.dsn)), migrations.head()
        if database.secrets_file.exists():
            pass
        elif not new_secrets and asyncio.run(has_keys(database.dsn)):
            print(
                f"There is no {database.secrets_file}, and none was made: the database has keys"
                " that only work with the one that they were made with. Copy it from a gateway or a"
                " backup; if it is lost, --new-secrets makes another."
            )
        elif secrets.ensure(database.secrets_file):
            print(f"Made {database.secrets_file}: every gateway on this database needs this file.")
    if before == after:
        print(f"The schema is at {after} already.")
    else:
        print(f"Migrated from {before or 'an empty database'} to {after}.")


def address(url: str | None, key: str | None, data_dir: Path, *, is_admin: bool = False) -> Address:
    """The server for a client. What the arguments leave open is taken from a running demo, or else
    from this folder's settings file.

    Raises ``ConfigError``.
    """
    from gateway.commands.data_dir import DataDir
    from gateway.errors import ConfigError

    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must look like http://host:port, got {url}")
    running = DataDir(data_dir).running() if url is None or key is None else None
    if url is None:
        if running is not None:
            url = running.url
        elif CONFIG_FILE.exists():
            url = _configured_url()
        else:
            raise ConfigError(
                f"no demo of {data_dir} is running; start `sluice demo`, or name a server "
                "with --url and --key"
            )
    if key is None:
        if running is None or running.url != url.rstrip("/"):
            raise ConfigError(f"no key for {url}; give one with --key or SLUICE_API_KEY")
        key = running.admin_key if is_admin else running.api_key
    return Address(url.rstrip("/"), key)


def _configured_url() -> str:
    from gateway import config as configuration

    server = configuration.load(CONFIG_FILE).server
    scheme = "http" if server.tls_certificate is None else "https"
    return configuration.local_url(server.host, server.port, scheme=scheme)
