from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import msgspec
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.processes import metrics_server
from gateway.processes.server import bind
from gateway.version import commit
from tenants.errors import StoreUnavailable
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import chat, get
from tests.gateway.serving import (
    Gateway,
    chat_body,
    double_client,
    make_config,
    served,
    until,
)
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio


async def test_ready(gateway: Gateway) -> None:
    assert (await get(gateway, "/livez")).json() == {"status": "alive"}
    answer = await get(gateway, "/readyz")
    assert answer.status == 200
    assert answer.json() == {
        "status": "ready",
        "engine": "ready",
        "models": {"tiny": "ready"},
        "engines": {"0": "ready"},
        "store": "ready",
        "draining": False,
        "failing": [],
    }


async def test_not_ready_while_the_engine_is_away(gateway: Gateway, double: EngineDouble) -> None:
    double.crash()
    answer = await get(gateway, "/readyz")
    assert answer.status == 503
    assert answer.json()["engine"] == "away"
    assert answer.headers["retry-after"] == "1"
    assert (await get(gateway, "/livez")).status == 200
    await until(lambda: gateway.engine.ready)
    assert (await get(gateway, "/readyz")).status == 200


async def test_alive_and_not_ready_before_the_engine_has_started(model_dir: Path) -> None:
    config = make_config(model_dir)
    double = EngineDouble(Tokenizer.load(model_dir))
    async with served(config, double_client(config, double), started=False) as gateway:
        assert (await get(gateway, "/livez")).status == 200
        assert (await get(gateway, "/readyz")).status == 503
        assert (await chat(gateway, chat_body())).error["code"] == "engine_unavailable"
        await gateway.engine.start()
        assert (await get(gateway, "/readyz")).status == 200


@pytest.mark.parametrize(("name", "status"), [("revocations", 503), ("upkeep", 200)])
async def test_work_that_is_down_is_told_and_some_takes_the_worker_out(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    services = gateway.app.state.services
    (work,) = [work for work in services.lifecycle.background._works if work.name == name]

    async def dies() -> None:
        raise RuntimeError("no reason")

    await services.lifecycle.background.stop()
    monkeypatch.setattr(work, "_run", dies)
    services.lifecycle.background.start()
    await until(lambda: work.num_deaths)
    assert (await get(gateway, "/readyz")).json()["failing"] == []
    monkeypatch.setattr("gateway.concurrency.background.DOWN_S", 0.0)
    answer = await get(gateway, "/readyz")
    assert answer.json()["failing"] == [name]
    assert answer.status == status
    scraped = services.metrics.render().decode()
    assert f'sluice_background_deaths_total{{work="{name}"}} 1.0' in scraped
    assert 'sluice_background_deaths_total{work="quota leases"} 0.0' in scraped


class AwayStore(MemoryStore):
    """Answers with an error, or not at all."""

    hangs = False

    async def ping(self) -> None:
        if self.hangs:
            await asyncio.sleep(60)
        raise StoreUnavailable("gone")


async def test_a_store_that_is_away_is_told_and_takes_nobody_out(model_dir: Path) -> None:
    config = make_config(model_dir)
    store = AwayStore()
    client = double_client(config, EngineDouble(Tokenizer.load(model_dir)))
    async with served(config, client, store=store) as gateway:
        for store.hangs in (False, True):
            answer = await get(gateway, "/readyz")
            assert answer.status == 200
            assert answer.json()["store"] == "away"


async def test_not_ready_while_draining(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 20, interval_s=0.05)
    running = asyncio.create_task(chat(gateway, chat_body()))
    await until(lambda: double.running)
    draining = asyncio.create_task(gateway.app.state.services.lifecycle.drain())
    await asyncio.sleep(0)
    answer = await get(gateway, "/readyz")
    assert answer.status == 503
    assert answer.json()["draining"] is True
    assert (await chat(gateway, chat_body())).error["code"] == "shutting_down"
    assert (await running).status == 200
    await draining


async def test_metrics(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="abc", num_cached_tokens=2)
    await chat(gateway, chat_body())
    await gateway.usage()
    key = await gateway.key("admin")
    answer = await get(gateway, "/metrics", authorization=f"Bearer {key}")
    text = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'sluice_generations_total{model="tiny",status="stop"} 1.0' in text
    assert 'sluice_tokens_total{kind="completion",model="tiny"} 3.0' in text
    assert 'sluice_tokens_total{kind="cached",model="tiny"} 2.0' in text
    labels = '{endpoint="/v1/chat/completions",model="tiny"}'
    assert f"sluice_time_to_first_token_seconds_count{labels} 1.0" in text
    assert f"sluice_time_per_output_token_seconds_count{labels} 1.0" in text
    assert "sluice_generations_running 0.0" in text
    assert f"sluice_e2e_request_latency_seconds_count{labels} 1.0" in text
    assert "sluice_ledger_pending 0.0" in text
    assert "sluice_ledger_lag_seconds 0.0" in text
    assert f'sluice_build_info{{commit="{commit()}",python="' in text
    assert "process_resident_memory_bytes" in text
    assert "sluice_inter_token_latency_seconds_count 2.0" in text
    assert "sluice_num_requests_running" in text
    for secret in (key, gateway.api_key, gateway.tenant.id.hex, str(gateway.tenant.id)):
        assert secret not in text


async def test_the_first_chunk_is_not_the_first_token(
    gateway: Gateway, double: EngineDouble
) -> None:
    """A stream begins with a chunk that has a role and no text, however long its request waits."""
    double.script = lambda prompt: Play(text="abc", queued_s=0.3)
    answer = await chat(gateway, chat_body(stream=True))
    assert "role" in answer.body.decode().split("data: ")[1]
    await gateway.usage()
    key = await gateway.key("admin")
    text = (await get(gateway, "/metrics", authorization=f"Bearer {key}")).body.decode()
    (seconds,) = re.findall(
        r"^sluice_time_to_first_token_seconds_sum\{.*\} (\S+)$", text, re.MULTILINE
    )
    assert float(seconds) >= 0.3


async def test_refusals_are_counted_by_cause(gateway: Gateway) -> None:
    await chat(gateway, chat_body(temperature=-1))
    await chat(gateway, chat_body(model="none"))
    await get(gateway, "/metrics")
    text = gateway.app.state.services.metrics.render().decode()
    for code in ("invalid_request", "model_not_found", "invalid_api_key"):
        assert f'sluice_refusals_total{{code="{code}"}} 1.0' in text


async def test_a_listener_of_its_own_needs_no_key(gateway: Gateway) -> None:
    metrics = gateway.app.state.services.metrics
    listener = bind(msgspec.structs.replace(gateway.app.state.services.config.server, port=0))
    with contextlib.closing(listener):
        async with metrics_server.served(listener, metrics):
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = (await reader.read()).decode()
            assert answer.startswith("HTTP/1.1 200")
            assert "sluice_generations_running 0.0" in answer
            writer.close()
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            writer.write(b"GET /admin/v1/tenants HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 404")
            writer.close()
