"""A server whose open files run out: it refuses what it cannot hold, and serves on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway import secrets
from gateway.admin.provisioning import create_key, ensure_tenant
from tenants.store import Store
from tests.e2e.demo_process import DemoProcess
from tests.postgres import pg_dsn, postgres_server, run_aside

__all__ = ["pg_dsn", "postgres_server"]
pytestmark = pytest.mark.pg

MAX_FILES, NUM_IDLE = 128, 160
TIMEOUT_S = 60.0
REPLAY = "100"


@contextlib.contextmanager
def demo(folder: Path) -> Iterator[tuple[int, str, str, str]]:
    with DemoProcess(folder / "data", "--replay", REPLAY, max_files=MAX_FILES) as process:
        ready = process.wait_ready()
        yield ready["pid"], ready["url"], ready["api_key"], process.output()
        assert process.stop() == 0


SERVE = """
import asyncio, sys
from functools import partial
from pathlib import Path
from engine.client.transport import ReplayProcess
from gateway import config, logs
from gateway.processes import server
logs.configure("info", "text")
asyncio.run(server.serve(
    config.load(Path(sys.argv[1])),
    on_ready=lambda url: print(url, flush=True),
    transport=partial(ReplayProcess, tokens_per_s=float(sys.argv[2])),
))
"""
"""``sluice serve``, but with the demo's ``--replay``."""


@contextlib.contextmanager
def serve(folder: Path, dsn: str) -> Iterator[tuple[int, str, str, str]]:
    made = secrets.create(folder / "secrets.json")

    async def provision() -> str:
        store = await Store.connect(dsn)
        await ensure_tenant(store, "acme")
        key = await create_key(store, made.key_pepper, "acme", name="k", scopes=["chat"])
        await store.close()
        return key

    key = run_aside(provision())
    (folder / "sluice.toml").write_text(
        f'[server]\nport = 0\n[models]\nserved_model_name = "demo"\n[engine]\n'
        f'model = "{Path("engine/demo/model").absolute()}"\n'
        f'[tenants]\ndsn = "{dsn}"\nsecrets_file = "secrets.json"\n'
    )
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [
                *("sh", "-c", f'ulimit -n {MAX_FILES}; exec "$@"', "sh"),
                *(sys.executable, "-c", SERVE, str(folder / "sluice.toml"), REPLAY),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, (folder / "log").read_text()
        yield process.pid, url, key, (folder / "log").read_text()
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def ask(url: str, key: str) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return int(response.status)


def beginning_of_answer(connection: socket.socket) -> bytes:
    """What the server says to one that says nothing; nothing if it is kept."""
    connection.settimeout(0.02)
    try:
        return connection.recv(12)
    except TimeoutError:
        return b""


@pytest.mark.parametrize("command", [pytest.param("demo", marks=pytest.mark.nightly), "serve"])
def test_idle_connections_beyond_the_limit_get_503_and_it_serves_on(
    command: str, tmp_path: Path, open_folder: Path, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SERVER_HEADER_TIMEOUT_S", str(2 * TIMEOUT_S))  # the idle ones stay
    started = demo(open_folder) if command == "demo" else serve(tmp_path, pg_dsn)
    with started as (pid, url, key, log), contextlib.ExitStack() as stack:
        told = re.search(r"may open 128 files, enough for (\d+) connections", log)
        assert told is not None, log
        num_kept = int(told[1])
        host, port = url.removeprefix("http://").split(":")
        idle = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
            for _ in range(NUM_IDLE)
        ]
        deadline = time.monotonic() + TIMEOUT_S
        answers: Counter[bytes] = Counter()
        while (num_refused := answers[b"HTTP/1.1 503"]) < NUM_IDLE - num_kept:
            assert time.monotonic() < deadline, answers
            answers.update(filter(None, map(beginning_of_answer, idle)))
        assert num_refused == NUM_IDLE - num_kept
        # What it needs files for goes on meanwhile: a new connection to PostgreSQL is one.
        assert psutil.Process(pid).num_fds() < MAX_FILES - 20
        for connection in idle[:2]:
            connection.close()
        while (status := status_when_free(url, key, deadline)) != 200:
            assert time.monotonic() < deadline, status


def status_when_free(url: str, key: str, deadline: float) -> int:
    """200; 503 while the server has not noticed yet that connections were closed."""
    try:
        return ask(url, key)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 503
