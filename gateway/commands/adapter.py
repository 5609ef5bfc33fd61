"""``sluice adapter``: the LoRA adapters of tenants.

Uses the admin API of a running server, because only its engine can check whether an adapter fits.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.commands.database import DATA_DIR, Address, address
from gateway.commands.tables import Table, time_of

LOAD_TIMEOUT_S = 300
"""Time for the engine to read an adapter, perhaps from a slow disk."""

app = typer.Typer(
    help="Load, list and unload a tenant's LoRA adapters on a running server.",
    no_args_is_help=True,
)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]
AdapterName = Annotated[str, typer.Argument(help="The adapter's name: its model id.")]
Url = Annotated[str | None, typer.Option(help="The server, as http://host:port.")]
Key = Annotated[
    str | None,
    typer.Option(envvar="SLUICE_API_KEY", help="Admin key; by default that of the demo here."),
]
DataDir = Annotated[Path, typer.Option(help="Folder of a demo.")]


@app.command()
def load(
    tenant: TenantName,
    name: AdapterName,
    path: Annotated[
        str, typer.Argument(help="The adapter's folder on the server, below models.adapters_dir.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="The model that it changes, if several of the server take adapters."),
    ] = None,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Load an adapter in PEFT's format: the tenant's keys may use it as a model at once."""
    body = {"name": name, "path": path, "model": model}
    made = _ask(_server(url, key, data_dir), tenant, "POST", body=body)
    base = f", made for {made['base_model']}" if made["base_model"] else ""
    print(f"Loaded {made['name']} (rank {made['rank']}{base}) for {tenant}.")


@app.command("list")
def list_(
    tenant: TenantName, url: Url = None, key: Key = None, data_dir: DataDir = DATA_DIR
) -> None:
    """List a tenant's adapters."""
    rows = _ask(_server(url, key, data_dir), tenant, "GET")["data"]
    table = Table("name", "of", "rank", "path", "made for", "loaded")
    for row in rows:
        table.add_row(
            *(row["name"], row["parent"], str(row["rank"]), row["path"], row["base_model"] or ""),
            time_of(datetime.fromtimestamp(row["created_at"], UTC)),
        )
    table.show()


@app.command()
def unload(
    tenant: TenantName,
    name: AdapterName,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Unload an adapter: new requests for it are refused, running ones end by themselves."""
    _ask(_server(url, key, data_dir), tenant, "DELETE", f"/{quote(name)}")
    print(f"Unloaded {name} of {tenant}.")


def _server(url: str | None, key: str | None, data_dir: Path) -> Address:
    return address(url, key, data_dir, is_admin=True)


def _ask(server: Address, tenant: str, method: str, path: str = "", body: object = None) -> Any:
    from gateway.commands.http_client import ask
    from gateway.errors import ClientError

    # Other tenants' names may contain this one, on many pages.
    first = query = f"search={quote(tenant, safe='')}&limit=1000"
    while query:
        page = ask(server, "GET", f"/admin/v1/tenants?{query}")
        for row in page["data"]:
            if row["name"] == tenant:
                route = f"/admin/v1/tenants/{row['id']}/adapters{path}"
                return ask(server, method, route, body, timeout_s=LOAD_TIMEOUT_S)
        query = f"{first}&after={page['next']}" if page["has_more"] else ""
    raise ClientError(f"there is no tenant {tenant!r}; `sluice tenant list` shows them all")
