"""The server under measurement: one that runs already, or a demo started for the purpose."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from gateway.commands.database import Address
from gateway.errors import ClientError, ConfigError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    url: str | None = None
    """None: a demo is started for it."""
    key: str | None = None
    replay_tokens_per_s: float | None = None
    """The pace at which the engine behind the server sends each stream; None: its own."""
    pid: int | None = None
    """The server's process, if ``url`` is set and its CPU time is wanted."""


class Measured(NamedTuple):
    """A server that answers."""

    address: Address
    pid: int | None


@contextmanager
def opened(target: Target, console: Console) -> Iterator[Measured]:
    """The server that was named, or a demo of our own in a folder that does not stay.

    Raises ``ConfigError`` for a target that cannot be, ``ClientError`` if a demo does not start.
    """
    url, key = target.url, target.key
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must look like http://host:port, got {url}")
        if key is None:
            raise ConfigError(f"no key for {url}; give one with --key or SLUICE_API_KEY")
        yield Measured(Address(url.rstrip("/"), key), target.pid)
        return
    if target.pid is not None:
        raise ConfigError("--pid is for a server named by --url")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        with console.status("Starting a demo to measure"):
            process, address = _start_demo(Path(folder), target.replay_tokens_per_s)
        try:
            yield Measured(address, process.pid)
        finally:
            _stop(process)


def _start_demo(
    folder: Path, replay_tokens_per_s: float | None
) -> tuple[subprocess.Popen[bytes], Address]:
    from gateway.data_dir import DataDir

    command = [sys.executable, "-m", "gateway", "demo", "--port", "0", "--data-dir", str(folder)]
    if replay_tokens_per_s is not None:
        command += ["--replay", str(replay_tokens_per_s)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while (running := DataDir(folder).running()) is None:
            if process.poll() is not None:
                raise ClientError("the demo to measure did not start; its reason stands above")
            if time.monotonic() > deadline:
                raise ClientError(f"the demo to measure was not ready in {START_TIMEOUT_S:g} s")
            time.sleep(0.05)
    except BaseException:
        _stop(process)
        raise
    return process, Address(running.url, running.api_key)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served_model(address: Address) -> str:
    """The first model of ``/v1/models``. Raises ``ClientError``."""
    from gateway.http_client import ask

    models = ask(address, "GET", "/v1/models")
    try:
        return str(models["data"][0]["id"])
    except (LookupError, TypeError):
        raise ClientError(f"{address.url} is not a Sluice server") from None
