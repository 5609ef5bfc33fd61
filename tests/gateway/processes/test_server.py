from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from engine.client.transport import ReplayProcess
from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError
from gateway import config as configuration
from gateway import secrets
from gateway.admin.provisioning import create_key, ensure_tenant
from gateway.config import ServerConfig
from gateway.errors import AddressInUse, ConfigError, SecretsError
from gateway.processes import server
from tenants.errors import StoreUnavailable
from tenants.store import Store
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, chat, events, post
from tests.gateway.serving import Gateway, chat_body, encode, served_double, until
from tests.ledger import usage_totals
from tests.postgres import pg_dsn, postgres_server, run_aside

__all__ = ["pg_dsn", "postgres_server"]


# -- listening


def test_a_taken_port_is_one_clear_line() -> None:
    with server.bind(ServerConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse) as caught:
            server.bind(ServerConfig(port=port))
    assert str(caught.value) == (
        f"127.0.0.1:{port} is taken; choose another server.port (0 picks a free one) or server.host"
    )


def test_an_address_of_another_machine() -> None:
    with pytest.raises(AddressInUse, match="not an address of this machine"):
        server.bind(ServerConfig(host="203.0.113.1", port=0))


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
def test_an_address_for_peers_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"server.peer_host: '{host}' is not an address of this"):
        server.bind(ServerConfig(port=0, peer_host=host))
    server.bind(ServerConfig(port=0, peer_host="127.0.0.1")).close()


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(AddressInUse, match="no such host"):
        server.bind(ServerConfig(host="no.such.host.invalid", port=0))


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_url_is_one_to_use_here(host: str, shown: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with server.bind(ServerConfig(host=host, port=0)) as listener:
        port = listener.getsockname()[1]
        assert server.url_of(listener) == f"http://{shown}:{port}"


# -- starting


def sluice_toml(tmp_path: Path, **sections: dict[str, object]) -> configuration.Config:
    secrets.create(tmp_path / "secrets.json")
    document: dict[str, dict[str, object]] = {
        "engine": {"model": str(MODEL_DIR)},
        "server": {"port": 0},
        "tenants": {
            "dsn": "postgresql://nobody@127.0.0.1:1/none",
            "secrets_file": str(tmp_path / "secrets.json"),
        },
    }
    for section, keys in sections.items():
        document[section] = document.get(section, {}) | keys
    return configuration.parse(document)


@pytest.mark.asyncio
async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    config = sluice_toml(tmp_path)
    with pytest.raises(StoreUnavailable):
        await server.serve(config)
    with pytest.raises(ConfigError, match=r"tenants\.dsn is missing"):
        await server.serve(configuration.parse({"engine": {"model": "x"}, "server": {"port": 0}}))
    (tmp_path / "secrets.json").unlink()
    with pytest.raises(SecretsError, match="no such file"):
        await server.serve(config)


@pytest.mark.asyncio
async def test_a_taken_port_is_found_before_anything_is_started(tmp_path: Path) -> None:
    with server.bind(ServerConfig(port=0)) as taken:
        config = sluice_toml(tmp_path, server={"port": taken.getsockname()[1]})
        with pytest.raises(AddressInUse):
            await server.serve(config)


@pytest.mark.pg
@pytest.mark.asyncio
async def test_a_broken_model_is_raised_and_nothing_stays(tmp_path: Path, pg_dsn: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in MODEL_DIR.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = sluice_toml(tmp_path, engine={"model": str(folder)}, tenants={"dsn": pg_dsn})
    ready: list[str] = []
    with pytest.raises(ModelLoadError):
        await server.serve(config, on_ready=ready.append)
    assert not ready
    children = psutil.Process().children()
    assert not [child for child in children if "engine.process" in " ".join(_cmdline(child))]


@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("ready_first", [False, True])
async def test_cancelling_is_an_orderly_end_too(
    tmp_path: Path, pg_dsn: str, ready_first: bool
) -> None:
    config = sluice_toml(tmp_path, engine={"num_threads": 1}, tenants={"dsn": pg_dsn})
    loaded, begun = asyncio.Event(), asyncio.Event()
    urls: list[str] = []

    def on_ready(url: str) -> None:
        urls.append(url)
        loaded.set()

    serving = asyncio.create_task(
        server.serve(
            config,
            on_progress=lambda progress: begun.set(),
            on_ready=on_ready,
            transport=partial(ReplayProcess, tokens_per_s=100),
        )
    )
    await (loaded if ready_first else begun).wait()
    children = psutil.Process().children()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await serving
    assert bool(urls) == ready_first
    assert not [child for child in children if "engine.replay" in " ".join(_cmdline(child))]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


# -- going down


@pytest.mark.asyncio
async def test_running_requests_may_end(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 30, interval_s=0.01)
    stream = asyncio.create_task(chat(gateway, chat_body(stream=True)))
    whole = asyncio.create_task(chat(gateway, chat_body()))
    idle = await RawClient.connect(gateway)
    await until(lambda: len(double.running) == 2)
    gateway.server.should_exit = True
    await until(lambda: gateway.app.state.services.lifecycle.draining)
    with pytest.raises(OSError, match="Connect call failed"):
        await RawClient.connect(gateway)
    assert events((await stream).body)[-1] == "[DONE]"
    assert (await whole).json()["choices"][0]["message"]["content"] == "x" * 30
    async with asyncio.timeout(30):
        assert await idle.reader.read() == b""
    await idle.close()
    assert (await gateway.usage(2)).completion_tokens == 60


@pytest.mark.asyncio
async def test_at_the_deadline_they_are_told_and_settled(model_dir: Path) -> None:
    async with served_double(model_dir, shutdown_timeout_s=0.2) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
        stream = asyncio.create_task(chat(gateway, chat_body(stream=True)))
        whole = asyncio.create_task(chat(gateway, chat_body()))
        await until(lambda: len(double.generated) == 2)
        gateway.server.should_exit = True
        last = events((await stream).body)[-1]
        assert last["error"]["code"] == "shutting_down"
        answer = await whole
        assert answer.status == 503
        assert answer.error["code"] == "shutting_down"
        totals = await gateway.usage(2)
        assert totals.completion_tokens == sum(double.generated.values())


@pytest.mark.asyncio
async def test_a_kept_connection_gets_a_503_while_draining(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 30, interval_s=0.05)
    running = asyncio.create_task(chat(gateway, chat_body()))
    await until(lambda: double.running)
    kept = await RawClient.connect(gateway)
    kept.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await kept.answer()).status == 200
    gateway.server.should_exit = True
    await until(lambda: gateway.app.state.services.lifecycle.draining)
    kept.send(post(gateway, encode(chat_body())))
    answer = await kept.answer()
    assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert answer.headers["retry-after"] == "1"
    await kept.close()
    assert (await running).status == 200


@pytest.mark.asyncio
async def test_a_second_ctrl_c_waits_for_nobody(model_dir: Path) -> None:
    async with served_double(model_dir, shutdown_timeout_s=60.0) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.1)
        client = await RawClient.connect(gateway)
        client.send(post(gateway, encode(chat_body(stream=True))))
        await until(lambda: double.generated)
        gateway.server.handle_exit(signal.SIGINT, None)
        await until(lambda: gateway.app.state.services.lifecycle.draining)
        gateway.server.handle_exit(signal.SIGINT, None)
        await until(lambda: not gateway.server.server_state.tasks)
        *_, last = events((await client.answer()).body)
        assert last["error"]["code"] == "shutting_down"
        await client.close()


# -- the whole thing, as its own process


@pytest.fixture
def process(tmp_path: Path, pg_dsn: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """``server.run`` on PostgreSQL and a replayed text: the process, its URL and a key."""
    made = secrets.create(tmp_path / "secrets.json")

    async def provision() -> str:
        store = await Store.connect(pg_dsn)
        await ensure_tenant(store, "acme")
        key = await create_key(store, made.key_pepper, "acme", name="k", scopes=["chat"])
        await store.close()
        return key

    key = run_aside(provision())
    (tmp_path / "sluice.toml").write_text(
        f'[server]\nport = 0\nlog_format = "json"\n[engine]\nmodel = "{MODEL_DIR}"\n'
        f'num_threads = 1\n[tenants]\ndsn = "{pg_dsn}"\nsecrets_file = "secrets.json"\n'
    )
    program = (
        "import resource, sys; from functools import partial; from pathlib import Path\n"
        "from engine.client.transport import ReplayProcess\n"
        "from gateway import config\n"
        "from gateway.processes import server\n"
        "replay = partial(ReplayProcess, tokens_per_s=100)\n"
        "server.serve.__kwdefaults__['transport'] = replay\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))\n"  # as Linux starts it
        "server.run(config.load(Path(sys.argv[1])),"
        " on_ready=lambda url: print(url, flush=True))"
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "sluice.toml")],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    assert url, (tmp_path / "log").read_text()
    yield process, url, key
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.pg
def test_sigterm_lets_a_stream_end_and_leaves_nothing(
    process: tuple[subprocess.Popen[bytes], str, str], pg_dsn: str, tmp_path: Path
) -> None:
    """Sent to every process at once, as systemd does."""
    server_process, url, key = process
    children = psutil.Process(server_process.pid).children(recursive=True)
    assert children
    soft, _ = psutil.Process(server_process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft > ServerConfig().max_connections
    body = chat_body("Hello!", model="model", stream=True, max_tokens=60, ignore_eos=True)
    chunks = []
    with httpx.stream(
        "POST",
        f"{url}/v1/chat/completions",
        headers={"authorization": f"Bearer {key}"},
        json=body,
        timeout=60,
    ) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line:
                chunks.append(line.removeprefix("data: "))
            if len(chunks) == 3:
                for pid in (server_process.pid, *(child.pid for child in children)):
                    os.kill(pid, signal.SIGTERM)
    assert chunks[-1] == "[DONE]"
    assert server_process.wait(60) == 0
    assert not any(child.is_running() for child in children)
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    stages = [line["message"] for line in log if line["message"].startswith("shutdown: ")]
    assert [stage.split()[1] for stage in stages] == ["refuse", "tell", "wait", "settle", "close"]

    async def ledger() -> int:
        store = await Store.connect(pg_dsn)
        tenant = await store.get_tenant("acme")
        totals = await usage_totals(store, tenant.id)
        await store.close()
        return totals.completion_tokens

    assert run_aside(ledger()) == 60
