"""The server under measurement: one that runs already, or a demo started for the purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
from rich.console import Console

from engine.client.transport import ABORTS_ENV
from gateway.bench.aborts import Aborts
from gateway.bench.process import NO_OTHERS
from gateway.commands.data_dir import DataDir, Running
from gateway.commands.database import Address
from gateway.commands.http_client import ask
from gateway.errors import ClientError, ConfigError
from tenants.embedded import EmbeddedPostgres
from tenants.limits import Limits

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
FAR_LIMITS = Limits(
    requests_per_minute=10**6,
    tokens_per_minute=10**9,
    max_concurrent=10**6,
    max_queued=10**6,
    monthly_tokens=10**15,
    monthly_cost_micro=10**15,
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    url: str | None = None
    """None to start a demo for it."""
    key: str | None = None
    replay_tokens_per_s: float | None = None
    """The rate at which the engine sends each stream; None for its own rate."""
    pids: Sequence[int] = ()
    """The server's processes, if ``url`` is set and their CPU time is wanted."""
    through: str | None = None
    """Another OpenAI-compatible proxy in front of the same server, measured beside it."""
    through_key: str | None = None
    through_pids: Sequence[int] = ()
    has_floor: bool = False
    """Whether to measure ``bench.floor`` as well."""
    has_limits: bool = False
    """Whether to give the demo's tenant limits of all kinds, which are never reached."""


class Measured(NamedTuple):
    """A running server that is measured."""

    name: str
    address: Address
    pids: Sequence[int]
    others: Mapping[str, int] = NO_OTHERS
    """The ``others`` for ``Processes``."""
    aborts: Aborts | None = None


@contextmanager
def opened(target: Target, console: Console) -> Iterator[list[Measured]]:
    """The server that was named, or a demo of our own in a folder that does not stay; then the
    proxy in front of it, if there is one.

    Raises ``ConfigError`` for a target that cannot be, ``ClientError`` if a demo does not start.
    """
    if target.url is not None:
        if target.has_limits:
            raise ConfigError("--limits is for a demo that is started: --url has its own tenants")
        direct = Measured("direct", _address("url", target.url, target.key), target.pids)
        yield [direct, *_through(target)]
        return
    if target.pids:
        raise ConfigError("--pid is for a server named by --url")
    if target.through is not None:
        raise ConfigError("--through is for a server named by --url, which the proxy knows")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        notes = Path(folder) / "aborts"
        with console.status("Starting a demo to measure"):
            process, running = _start_demo(Path(folder), target.replay_tokens_per_s, notes)
        address = Address(running.url, running.api_key)
        replays = target.replay_tokens_per_s is not None
        try:
            if target.has_limits:
                _set_limits(Address(running.url, running.admin_key))
            others = _others(process.pid, DataDir(Path(folder)))
            noted = Aborts(notes) if replays else None
            yield [Measured("direct", address, [process.pid], others, noted)]
        finally:
            _stop(process)


def _others(pid: int, folder: DataDir) -> Mapping[str, int]:
    """The other processes of a demo that this benchmark has started."""
    modules = ("engine.process", "engine.replay")
    children = psutil.Process(pid).children()
    engines = [one.pid for one in children if any(name in one.cmdline() for name in modules)]
    postgres = EmbeddedPostgres(folder.postgres).pid
    return {"engine": engines[0]} | ({} if postgres is None else {"PostgreSQL": postgres})


@contextmanager
def floor(tokens_per_s: float) -> Iterator[Measured]:
    """A running ``bench.floor``. Raises ``ClientError`` if it does not start."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.bench.floor", repr(tokens_per_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().decode().strip()
        if not port:
            raise ClientError("the floor to measure did not start; its reason stands above")
        yield Measured("floor", Address(f"http://127.0.0.1:{port}", "none"), [process.pid])
    finally:
        process.stdin.close()
        process.stdout.close()
        _stop(process)


def _through(target: Target) -> list[Measured]:
    if target.through is None:
        return []
    address = _address("through", target.through, target.through_key)
    return [Measured("through", address, target.through_pids)]


def _address(option: str, url: str, key: str | None) -> Address:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--{option} must look like http://host:port, got {url}")
    if key is None:
        mend = "--key or SLUICE_API_KEY" if option == "url" else "--through-key"
        raise ConfigError(f"no key for {url}; give one with {mend}")
    return Address(url.rstrip("/"), key)


def _set_limits(admin: Address) -> None:
    """Set limits of all kinds for the demo's tenant."""
    (tenant,) = ask(admin, "GET", "/admin/v1/tenants")["data"]
    ask(admin, "PUT", f"/admin/v1/tenants/{tenant['id']}/limits", FAR_LIMITS)


def _start_demo(
    folder: Path, replay_tokens_per_s: float | None, notes: Path
) -> tuple[subprocess.Popen[bytes], Running]:
    command = [sys.executable, "-m", "gateway", "demo", "--port", "0", "--data-dir", str(folder)]
    if replay_tokens_per_s is not None:
        command += ["--replay", str(replay_tokens_per_s)]
    environment = {**os.environ, ABORTS_ENV: str(notes)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while (running := DataDir(folder).running()) is None:
            if process.poll() is not None:
                raise ClientError("the demo to measure did not start; its reason stands above")
            if time.monotonic() > deadline:
                raise ClientError(
                    f"the demo to measure was not ready in {START_TIMEOUT_S:g} s: the machine is "
                    "too busy to measure; for a server that runs already give --url and --key"
                )
            time.sleep(0.05)
    except BaseException:
        _stop(process)
        raise
    return process, running


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served_model(address: Address) -> str:
    """The first model of ``/v1/models``. Raises ``ClientError``."""
    models = ask(address, "GET", "/v1/models")
    try:
        return str(models["data"][0]["id"])
    except (LookupError, TypeError):
        raise ClientError(f"{address.url} is not a Sluice server") from None
