"""``server.workers`` above one, as it is run: processes, one port, one engine, PostgreSQL.

The engine is one that replays a text, which starts in a fraction of the time; by night some tests
have the bundled model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace
from openai import AsyncOpenAI

from engine.client.transport import ReplayProcess
from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError
from engine.replay import TEXT
from gateway import config as configuration
from gateway import secrets
from gateway.admin.provisioning import create_key, ensure_tenant
from gateway.config import Config, ServerConfig
from gateway.errors import AddressInUse, SetupError
from gateway.metrics import worker_metrics
from gateway.processes import server, supervisor
from gateway.processes.fleet import spawned_fleets
from tenants.store import Store
from tenants.types import Scope
from tests.engine.lora.making import write_adapter
from tests.gateway.raw_http import events
from tests.gateway.routes.test_responses import events_of
from tests.gateway.serving import until
from tests.ledger import usage_totals
from tests.postgres import module_pg_dsn, pg_dsn, postgres_server

__all__ = ["module_pg_dsn", "pg_dsn", "postgres_server"]
pytestmark = pytest.mark.pg

NUM_WORKERS = 2
TOKENS_PER_S = 1000.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "temperature": 0}


def make_config(
    tmp_path: Path, dsn: str, *, models: Mapping[str, object] | None = None, **engine: object
) -> Config:
    secrets.create(tmp_path / "secrets.json")
    return configuration.parse(
        {
            "engine": {"model": str(MODEL_DIR), "num_threads": 1, **engine},
            "server": {"port": 0, "workers": NUM_WORKERS, "shutdown_timeout_s": 5},
            "tenants": {"dsn": dsn, "secrets_file": str(tmp_path / "secrets.json")},
            "models": {"served_model_name": "demo", **(models or {})},
        }
    )


async def make_key(config: Config, scope: Scope = "chat", *, tenant: str = "acme") -> str:
    assert config.tenants.dsn is not None
    store = await Store.connect(config.tenants.dsn)
    try:
        await ensure_tenant(store, tenant)
        pepper = secrets.load(Path(config.tenants.secrets_file)).key_pepper
        return await create_key(store, pepper, tenant, name="k", scopes=[scope])
    finally:
        await store.close()


def workers_here() -> list[psutil.Process]:
    return _running("gateway.processes.worker")


def _running(module: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends while we look
            if child.status() != psutil.STATUS_ZOMBIE and module in child.cmdline():
                found.append(child)
    return found


def replaying() -> contextlib.AbstractContextManager[object]:
    """Supervisors that begin in the block start an engine without a model."""
    replay = partial(ReplayProcess, tokens_per_s=TOKENS_PER_S)
    assert spawned_fleets.__kwdefaults__ is not None
    return mock.patch.dict(spawned_fleets.__kwdefaults__, transport=replay)


@contextlib.asynccontextmanager
async def serving(config: Config, *, has_model: bool = False) -> AsyncIterator[str]:
    """The URL, while it is served."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with contextlib.nullcontext() if has_model else replaying():
        task = asyncio.create_task(supervisor.serve(config, on_ready=url.set_result))
        await asyncio.wait((task, url), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield await url
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert workers_here() == []


async def is_answered(url: str, key: str) -> bool:
    """Whether an answer is the replayed text."""
    # A connection of its own, so that the kernel chooses a worker each time.
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            stream=True,
            max_tokens=20,
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return len(text) > 20 and TEXT.startswith(text)


async def worker_of(url: str) -> int:
    """The pid that answers a new connection."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{url}/livez") as response,
    ):
        assert response.status_code == 200
        return pid_behind(response)


def pid_behind(response: httpx.Response) -> int:
    """The worker that a connection leads to, which must still be open."""
    port = response.extensions["network_stream"].get_extra_info("client_addr")[1]
    for worker in workers_here():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(c.raddr and c.raddr.port == port for c in worker.net_connections("tcp")):
                return worker.pid
    raise AssertionError("no worker has this connection")


async def count_of(url: str, key: str, sample: str) -> float:
    """A sample of the metrics, from whichever worker the kernel chooses."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        text = (await client.get(f"{url}/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample))


async def every_scrape_counts(url: str, key: str, sample: str, expected: float) -> None:
    """Soon: the workers tell each other every second."""
    async with asyncio.timeout(60):
        while await what_every_scrape_counts(url, key, sample) != expected:  # noqa: ASYNC110
            await asyncio.sleep(worker_metrics.INTERVAL_S / 4)


async def what_every_scrape_counts(url: str, key: str, sample: str) -> float:
    """Once all workers say the same."""
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110
            len(found := {await count_of(url, key, sample) for _ in range(12)}) > 1
        ):
            await asyncio.sleep(worker_metrics.INTERVAL_S / 4)
    return found.pop()


class Client:
    """A connection of its own for each request, so that the kernel chooses a worker each time."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(headers=self._headers, timeout=60) as client:
            return await client.request(method, f"{self._url}{path}", **options)

    async def read(
        self, method: str, path: str, limit: int, **options: Any
    ) -> tuple[httpx.Headers, bytes, bool]:
        """At most ``limit`` bytes, cut to whole events, and whether they are all."""
        body, limit = b"", max(limit, 1)
        async with (
            httpx.AsyncClient(headers=self._headers, timeout=60) as client,
            client.stream(method, f"{self._url}{path}", **options) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= limit:
                    events, end, _ = body[:limit].rpartition(b"\n\n")
                    return response.headers, events + end, False
        return response.headers, body, True


@dataclass
class Site:
    """Workers that serve for several tests."""

    config: Config
    url: str

    def engine(self) -> psutil.Process:
        (found,) = _running("engine.replay")
        return found


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def site(tmp_path_factory: pytest.TempPathFactory, module_pg_dsn: str) -> AsyncIterator[Site]:
    config = make_config(tmp_path_factory.mktemp("site"), module_pg_dsn)
    config = replace(config, server=replace(config.server, worker_hang_timeout_s=15.0))
    async with serving(config) as url:
        yield Site(config, url)


async def replaced(victim: int) -> None:
    """Wait until there are enough workers without it; the others are those there were."""
    workers = {worker.pid for worker in workers_here()} | {victim}
    async with asyncio.timeout(90):
        while (  # noqa: ASYNC110
            len(now := {worker.pid for worker in workers_here()} - {victim}) < NUM_WORKERS
        ):
            await asyncio.sleep(0.05)
    assert len(now & workers) == NUM_WORKERS - 1
    assert not psutil.pid_exists(victim)


@pytest.mark.asyncio(loop_scope="class")
class TestOneSite:
    async def test_they_share_the_port_the_engine_and_the_ledger(self, site: Site) -> None:
        key, url = await make_key(site.config, tenant="sharing"), site.url
        assert all(await asyncio.gather(*(is_answered(url, key) for _ in range(24))))
        assert {await worker_of(url) for _ in range(64)} == {w.pid for w in workers_here()}
        assert site.engine().is_running()
        store = await Store.connect(str(site.config.tenants.dsn))
        try:
            tenant = await store.get_tenant("sharing")

            async def settled() -> bool:
                return (await usage_totals(store, tenant.id)).requests == 24

            await until(settled)
        finally:
            await store.close()

    async def test_every_scrape_tells_of_all_workers_the_dead_too(self, site: Site) -> None:
        key, admin_key = await make_key(site.config), await make_key(site.config, "admin")
        url, sample = site.url, "sluice_generations_total"
        before = await what_every_scrape_counts(url, admin_key, sample)
        await asyncio.gather(*(is_answered(url, key) for _ in range(12)))
        await every_scrape_counts(url, admin_key, sample, before + 12)
        victim = min(worker.pid for worker in workers_here())
        os.kill(victim, signal.SIGKILL)
        await replaced(victim)
        assert await is_answered(url, key)
        await every_scrape_counts(url, admin_key, sample, before + 13)

    async def test_all_go_on_after_the_death_of_the_engine(self, site: Site) -> None:
        key = await make_key(site.config)
        workers = {worker.pid for worker in workers_here()}
        site.engine().kill()
        is_back = False
        async with asyncio.timeout(60):
            while not is_back:
                with contextlib.suppress(Exception):
                    is_back = await is_answered(site.url, key)
                await asyncio.sleep(0.1)
        assert {worker.pid for worker in workers_here()} == workers

    async def test_a_stream_is_read_on_whichever_worker_is_asked(self, site: Site) -> None:
        luck = random.Random(2)
        key, url = await make_key(site.config, tenant="resuming"), site.url
        client = Client(url, key)
        chat = {"model": "demo", "messages": QUESTION, "stream": True, "resumable": True, **LONG}
        headers, body, ended = await client.read(
            "POST", "/v1/chat/completions", luck.randrange(5000), json=chat
        )
        stream_id = headers["x-sluice-stream-id"]
        while not ended:
            path = f"/v1/streams/{stream_id}?from={body.count(b'data: ')}"
            _, more, ended = await client.read("GET", path, luck.randrange(5000))
            body += more
        for _ in range(8):  # with the kernel's choice, both workers answer some
            whole = await client.request("GET", f"/v1/streams/{stream_id}")
            assert whole.content == body
        assert events(body)[-1] == "[DONE]"

        asked = {"model": "demo", "input": "Hi", "background": True, "stream": True}
        _, body, ended = await client.read(
            "POST", "/v1/responses", 6000, json=asked | {"max_output_tokens": 150}
        )
        response_id = events_of(body)[0]["response"]["id"]
        while not ended:
            after = body.count(b"data: ") - 1
            path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
            _, more, ended = await client.read("GET", path, luck.randrange(2000, 9000))
            body += more
        told = events_of(body)
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        found = await asyncio.gather(
            *(client.request("GET", f"/v1/responses/{response_id}") for _ in range(8))
        )
        assert {answer.content for answer in found} == {found[0].content}
        assert found[0].json() == told[-1]["response"]

        keyed = {"headers": {"idempotency-key": "k"}, "json": chat | {"stream": False}}
        keyed["json"].pop("resumable")
        answers = await asyncio.gather(
            *(client.request("POST", "/v1/chat/completions", **keyed) for _ in range(8))
        )
        assert {answer.content for answer in answers} == {answers[0].content}
        assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7

    async def test_what_a_worker_ran_that_is_killed_has_failed(self, site: Site) -> None:
        """A background response; whoever asks for it hears so, from any worker."""
        key, url = await make_key(site.config, tenant="bereft"), site.url
        client, asked = Client(url, key), {"model": "demo", "input": "Hi", "background": True}
        headers = {"authorization": f"Bearer {key}"}
        site.engine().suspend()
        try:
            async with (
                httpx.AsyncClient(headers=headers, timeout=60) as one,
                one.stream("POST", f"{url}/v1/responses", json=asked) as answer,
            ):
                victim = pid_behind(answer)
                response_id = json.loads(await answer.aread())["id"]
            os.kill(victim, signal.SIGKILL)
            await replaced(victim)
        finally:
            site.engine().resume()
        path = f"/v1/responses/{response_id}"
        for _ in range(4):
            found = (await client.request("GET", path)).json()
            assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
            events = await client.request("GET", f"{path}?stream=true")
            assert (events.status_code, events.json()["error"]["code"]) == (
                410,
                "response_events_gone",
            )
        again = await client.request("POST", "/v1/responses", json=asked | {"background": False})
        assert again.json()["status"] == "completed"

    async def test_a_worker_that_hangs_is_replaced(self, site: Site) -> None:
        key = await make_key(site.config)
        victim = min(worker.pid for worker in workers_here())
        os.kill(victim, signal.SIGSTOP)
        await replaced(victim)
        for _ in range(8):
            assert await is_answered(site.url, key)


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_model_that_cannot_be_loaded_is_raised(tmp_path: Path, pg_dsn: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in MODEL_DIR.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelLoadError):
        await supervisor.serve(make_config(tmp_path, pg_dsn, model=str(folder)))
    assert workers_here() == []


@pytest.mark.asyncio
async def test_a_workers_own_words_are_raised(tmp_path: Path) -> None:
    config = make_config(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    with replaying(), pytest.raises(SetupError, match=r"127\.0\.0\.1:1"):
        await supervisor.serve(config)
    assert workers_here() == []


@pytest.mark.asyncio
async def test_a_strangers_port_is_refused(tmp_path: Path, pg_dsn: str) -> None:
    config = make_config(tmp_path, pg_dsn)
    with server.bind(ServerConfig(port=0), shared=True) as taken:
        port = taken.getsockname()[1]
        parsed = configuration.parse(
            {
                "engine": {"model": config.engine.model},
                "server": {"port": port, "workers": NUM_WORKERS},
            }
        )
        with pytest.raises(AddressInUse):
            await supervisor.serve(parsed)


@pytest.mark.asyncio
async def test_sigterm_on_the_command_stops_everything(tmp_path: Path, pg_dsn: str) -> None:
    secrets.create(tmp_path / "secrets.json")
    (tmp_path / "sluice.toml").write_text(
        f'[server]\nport = 0\n[engine]\nmodel = "{MODEL_DIR}"\nnum_threads = 1\n'
        f'[tenants]\ndsn = "{pg_dsn}"\nsecrets_file = "secrets.json"\n'
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attack.replaying", "100", "serve", "--workers", "2"),
        *("--config", str(tmp_path / "sluice.toml")),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if b"with 2 workers" in line:
                break
    family = psutil.Process(process.pid).children(recursive=True)
    assert sum("gateway.processes.worker" in child.cmdline() for child in family) == 2
    process.terminate()
    async with asyncio.timeout(60):
        await process.stderr.read()
        assert await process.wait() == 0
    assert not any(child.is_running() for child in family)


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_an_adapter_is_there_for_all_workers_and_gone_for_all(
    tmp_path: Path, pg_dsn: str
) -> None:
    write_adapter(tmp_path / "adapters" / "helper", MODEL_DIR, rank=4)
    config = make_config(
        tmp_path, pg_dsn, models={"adapters_dir": str(tmp_path / "adapters")}, enable_lora=True
    )
    key, admin_key = await make_key(config), await make_key(config, "admin")

    async def ask(url: str) -> int:
        # A connection of its own: the kernel chooses the worker anew.
        body = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            return (await client.post(f"{url}/v1/chat/completions", json=body)).status_code

    async def everywhere(url: str, status: int) -> None:
        """Other workers hear of it a moment later."""
        async with asyncio.timeout(60):
            while set(await asyncio.gather(*(ask(url) for _ in range(8)))) != {status}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with (
        serving(config, has_model=True) as url,
        httpx.AsyncClient(headers={"authorization": f"Bearer {admin_key}"}, timeout=60) as admin,
    ):
        await everywhere(url, 404)
        (tenant,) = (await admin.get(f"{url}/admin/v1/tenants")).json()["data"]
        route = f"{url}/admin/v1/tenants/{tenant['id']}/adapters"
        made = await admin.post(route, json={"name": "helper", "path": "helper"})
        assert made.status_code == 201, made.text
        await everywhere(url, 200)
        assert (await admin.delete(f"{route}/helper")).status_code == 200
        await everywhere(url, 404)
