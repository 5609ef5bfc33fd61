"""``sluice doctor``: looks at everything a server needs, and says of each what is wrong and what to
do. It changes nothing, and starts nothing that stays."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import typer

from gateway.commands import database

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.config.oidc import OidcConfig

MAX_SKEW_S = 2.0
"""How far the clocks of the database and of this machine may differ: keys expire by ours, windows
of limits by the database's."""
CONNECTIONS = 10
"""That each worker opens: the pool of ``PostgresStore.connect``, upkeep, and the listener."""
LEAST_POSTGRES, TESTED_POSTGRES = 15, 18
MIN_FREE_BYTES = 1 << 30
RENEW_DAYS = 14
_TIMEOUT_S = 60.0

Verdict = Literal["ok", "note", "wrong"]


class Finding(NamedTuple):
    verdict: Verdict
    what: str
    text: str


Check = Callable[["Config"], Iterator[Finding]]


def doctor(
    config: Annotated[Path, typer.Option(help="Settings file.")] = database.CONFIG_FILE,
) -> None:
    """Check what a server needs: settings, secrets, PostgreSQL, model, GPU, port, sign-in.

    Each line is ok, a note, or wrong, with what to do. Ends with 1 if anything is wrong.
    """
    from gateway import config as configuration

    logging.disable(logging.WARNING)  # What a check meets is in its finding.
    settings = configuration.load(config)
    print(f"ok     settings: {config}")
    is_wrong = False
    for check in CHECKS:
        for finding in check(settings):
            print(f"{finding.verdict:<6} {finding.what}: {finding.text}", flush=True)
            is_wrong |= finding.verdict == "wrong"
    if is_wrong:
        raise typer.Exit(1)


def check_secrets(settings: Config) -> Iterator[Finding]:
    from gateway import secrets
    from gateway.errors import SecretsError

    path = Path(settings.tenants.secrets_file)
    try:
        secrets.load(path)
    except SecretsError as error:
        yield Finding("wrong", "secrets", str(error))
    else:
        yield Finding("ok", "secrets", f"{path}; keep a copy: without it no key works")


def check_journal(settings: Config) -> Iterator[Finding]:
    journal = settings.tenants.journal_folder
    yield _folder("journal", journal, "tenants.journal_dir")


def _folder(what: str, folder: Path, setting: str) -> Finding:
    """Whether a folder can be written, or made."""
    parent = folder
    try:
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        return Finding(
            "wrong", what, f"{parent} cannot be written ({error.strerror}); set {setting}"
        )
    free = shutil.disk_usage(parent).free
    if free < MIN_FREE_BYTES:
        return Finding("note", what, f"{free / 2**20:.0f} MiB are free at {parent}; make room")
    return Finding("ok", what, str(folder))


def check_postgres(settings: Config) -> Iterator[Finding]:
    from tenants.errors import TenantsError

    tenants = settings.tenants
    if tenants.dsn is None:
        yield Finding("wrong", "PostgreSQL", "tenants.dsn is missing; set it to the one to use")
        return
    try:
        yield from asyncio.run(_look_at_postgres(settings))
    except TenantsError as error:
        yield Finding("wrong", "PostgreSQL", f"{error}; correct tenants.dsn, or start it")


async def _look_at_postgres(settings: Config) -> list[Finding]:
    """Raises ``TenantsError``."""
    import migrations
    from migrations import revisions
    from tenants.errors import TenantsError

    tenants = settings.tenants
    assert tenants.session_dsn is not None
    found: list[Finding] = []
    connection = await revisions.connect(tenants.session_dsn)
    try:
        version = int(await connection.fetchval("SHOW server_version_num")) // 10_000
        began = time.time()
        theirs: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())")
        skew_s = float(theirs) - (began + time.time()) / 2
        allowed = int(await connection.fetchval("SHOW max_connections"))
    finally:
        await connection.close()
    found.append(_look_at_version(version))
    if abs(skew_s) > MAX_SKEW_S:
        text = f"its clock is {skew_s:+.1f} s from ours; run NTP on both machines"
        found.append(Finding("wrong", "clock", text))
    needed = settings.server.workers * CONNECTIONS
    if not tenants.transaction_pooling and allowed < needed:
        text = (
            f"{settings.server.workers} workers open up to {needed} connections, and it allows "
            f"{allowed} in all; raise max_connections, or put PgBouncer between them"
        )
        found.append(Finding("note", "connections", text))
    try:
        await migrations.check(tenants.session_dsn)
    except TenantsError as error:
        found.append(Finding("wrong", "schema", str(error)))
    else:
        found.append(Finding("ok", "schema", migrations.head()))
    return found


def _look_at_version(version: int) -> Finding:
    text = f"version {version}"
    if version < LEAST_POSTGRES:
        return Finding("wrong", "PostgreSQL", f"{text}; upgrade it: {LEAST_POSTGRES} is the least")
    if version < TESTED_POSTGRES:
        return Finding("note", "PostgreSQL", f"{text}; the tests run on {TESTED_POSTGRES}")
    return Finding("ok", "PostgreSQL", text)


def check_models(settings: Config) -> Iterator[Finding]:
    for one in settings.each:
        yield from _look_at_model(one)


def _look_at_model(settings: Config) -> Iterator[Finding]:
    from engine import hub
    from engine.architectures import NATIVE
    from engine.errors import EngineError

    engine = settings.engine
    if not Path(engine.model).is_dir() and hub.is_hub_id(engine.model):
        yield Finding("note", "model", f"{engine.model} is of the hub; a start fetches what lacks")
        return
    try:
        folder = hub.fetch(engine.model, engine.revision)
        config = json.loads((folder / "config.json").read_bytes())
        files = [] if engine.load_format == "dummy" else hub.weight_files(folder)
    except (EngineError, OSError, ValueError) as error:
        yield Finding("wrong", "model", str(error))
        return
    names = config.get("architectures") or ["none"]
    runs = "native" if names[0] in NATIVE else "on transformers"
    size = sum(path.stat().st_size for path in files) / 2**30
    yield Finding("ok", "model", f"{folder}: {names[0]} ({runs}), {size:.1f} GiB of weights")


_LOOK_AT_DEVICES = """
import json, sys, torch
from kernels.build import BuildError, cache_dir, find_nvcc, library
found = {"cuda": torch.version.cuda, "devices": [], "cache": str(cache_dir())}
for index in range(torch.cuda.device_count()):
    known = torch.cuda.get_device_properties(index)
    found["devices"].append([known.name, known.major, known.minor, known.total_memory])
if found["devices"]:
    try:
        found["kernels"] = "compiled at the first start, by " + find_nvcc()
    except BuildError:
        try:
            found["kernels"] = str(library())
        except BuildError as error:
            found["no_kernels"] = str(error)
json.dump(found, sys.stdout)
"""
"""Run by a process of its own: the gateway and its commands never import torch."""


def check_devices(settings: Config) -> Iterator[Finding]:
    program = [sys.executable, "-c", _LOOK_AT_DEVICES]
    try:
        ran = subprocess.run(program, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        text = f"importing it took more than {_TIMEOUT_S:.0f} s; look at the load and the disk"
        yield Finding("wrong", "torch", text)
        return
    if ran.returncode != 0:
        cause = (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[-1]
        yield Finding("wrong", "torch", f"cannot be imported: {cause}; install sluice again")
        return
    found: dict[str, Any] = json.loads(ran.stdout)
    yield _folder("kernel cache", Path(found["cache"]), "SLUICE_KERNEL_CACHE")
    has_driver = shutil.which("nvidia-smi") is not None
    if not found["devices"]:
        if settings.engine.device == "cuda":
            reason = "the driver's devices are not visible" if has_driver else "there is no driver"
            mend = f"{reason}; torch needs one for CUDA {found['cuda']}, or set engine.device"
            yield Finding("wrong", "GPU", mend)
        else:
            yield Finding("note", "GPU", "none; the engine runs on the CPU")
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            yield Finding("note", "CPU kernels", "no C++ compiler; torch's own, slower, are used")
        return
    for name, major, minor, memory in found["devices"]:
        if (major, minor) < (8, 0):
            mend = f"{name} has compute capability {major}.{minor}; 8.0 is the least"
            yield Finding("wrong", "GPU", mend)
        else:
            yield Finding("ok", "GPU", f"{name}, {major}.{minor}, {memory / 2**30:.0f} GiB")
    if "no_kernels" in found:
        mend = "`python -m kernels build`, where there is nvcc, makes them; without, it is slow"
        yield Finding("wrong", "kernels", f"{found['no_kernels']}; {mend}")
    else:
        yield Finding("ok", "kernels", found["kernels"])


def check_port(settings: Config) -> Iterator[Finding]:
    from gateway.errors import SetupError
    from gateway.processes import server

    if settings.server.unix_socket is not None:
        return
    try:
        server.bound(settings.server, shared=False).close()
    except SetupError as error:
        if " is taken;" in str(error):
            yield Finding("note", "port", f"{error} (a Sluice that runs here is no fault)")
        else:
            yield Finding("wrong", "port", str(error))
    else:
        yield Finding("ok", "port", f"{settings.server.host}:{settings.server.port} is free")


def check_tls(settings: Config) -> Iterator[Finding]:
    from gateway.errors import ConfigError
    from gateway.processes import listening

    if settings.server.tls_certificate is None:
        return
    try:
        listening.check_tls(settings.server)
    except ConfigError as error:
        yield Finding("wrong", "TLS", str(error))
    else:
        yield _lifetime(Path(settings.server.tls_certificate))


def _lifetime(certificate: Path) -> Finding:
    from cryptography.x509 import load_pem_x509_certificate

    ends = load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    days = (ends - datetime.now(UTC)).days
    text = f"{certificate} is good until {ends:%Y-%m-%d}"
    if days < 0:
        return Finding("wrong", "TLS", f"{text}, which is over; put a new one in its place")
    return Finding("ok" if days >= RENEW_DAYS else "note", "TLS", text)


def check_open_files(settings: Config) -> Iterator[Finding]:
    from gateway.processes.open_files import MAX_BACKLOG, RESERVED

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = settings.server.max_connections + MAX_BACKLOG + RESERVED
    if hard != resource.RLIM_INFINITY and hard < needed:
        # With fewer than that no server starts; with these it serves fewer connections.
        verdict: Verdict = "wrong" if hard < RESERVED + 2 else "note"
        text = f"{hard} may be open, {needed} are needed; raise the hard limit (LimitNOFILE)"
        yield Finding(verdict, "open files", text)
    else:
        yield Finding("ok", "open files", "as many as server.max_connections needs")


def check_tracing(settings: Config) -> Iterator[Finding]:
    from gateway.errors import ConfigError
    from gateway.tracing import Tracing

    endpoint = settings.tracing.otlp_endpoint
    if endpoint is None:
        return
    try:
        Tracing(settings.tracing).close()
    except ConfigError as error:
        yield Finding("wrong", "tracing", str(error))
        return
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=5).close()
    except OSError as error:
        mend = "start the collector, or correct tracing.otlp_endpoint"
        yield Finding("wrong", "tracing", f"{endpoint} does not answer ({error}); {mend}")
    else:
        yield Finding("ok", "tracing", endpoint)


def check_sign_in(settings: Config) -> Iterator[Finding]:
    from gateway.errors import ConfigError
    from gateway.oidc.provider import ProviderUnusable

    if settings.oidc.issuer is None:
        return
    try:
        yield from asyncio.run(_look_at_provider(settings.oidc))
    except ConfigError as error:
        yield Finding("wrong", "sign-in", str(error))
    except ProviderUnusable as error:
        yield Finding("wrong", "sign-in", f"{error.reason}; correct oidc.issuer, or mend it there")


async def _look_at_provider(config: OidcConfig) -> list[Finding]:
    """Raises ``ConfigError``, ``ProviderUnusable``."""
    from gateway.oidc.provider import Provider

    provider = Provider(config)
    try:
        metadata = await provider.metadata()
        keys = await provider.keys()
    finally:
        await provider.close()
    found: list[Finding] = []
    offered = metadata.id_token_signing_alg_values_supported
    if offered and not set(offered) & set(config.algorithms):
        text = f"it signs by {', '.join(offered)} only; name one of these in oidc.algorithms"
        found.append(Finding("wrong", "sign-in", text))
    else:
        found.append(Finding("ok", "sign-in", f"{config.issuer}, {len(keys.keys)} keys"))
    # The time of an answer is given in whole seconds.
    if provider.ahead_s is not None and abs(provider.ahead_s) > config.clock_skew_s + 1:
        text = (
            f"its clock is {provider.ahead_s:+.0f} s from ours, and oidc.clock_skew_s allows "
            f"{config.clock_skew_s}; run NTP on both machines"
        )
        found.append(Finding("wrong", "sign-in", text))
    return found


CHECKS: tuple[Check, ...] = (
    check_secrets,
    check_journal,
    check_postgres,
    check_models,
    check_devices,
    check_port,
    check_tls,
    check_open_files,
    check_tracing,
    check_sign_in,
)
