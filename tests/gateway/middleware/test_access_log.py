from __future__ import annotations

import io
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from gateway import logs
from gateway.logs import LogThrottle
from gateway.middleware.access_log import MAX_PATH_CHARS, REFUSALS, REFUSALS_PER_S
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, chat, exchange, get, post
from tests.gateway.serving import Gateway, chat_body, encode, until
from tests.gateway.ws_client import ready

pytestmark = pytest.mark.asyncio


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.name == "gateway.access"]


async def test_a_line_says_who_and_what(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer = await chat(gateway, chat_body(user="user-7"))
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["path"]) == ("POST", "/v1/chat/completions")
    assert line["status"] == 200
    assert line["duration_ms"] > 0
    assert line["tenant"] == "acme"
    assert line["key"] == gateway.api_key.split("-")[2]
    assert line["user"] == "user-7"
    assert (line["model"], line["finish"]) == ("tiny", "stop")
    usage = answer.json()["usage"]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert 0 <= line["ttft_ms"] <= line["duration_ms"]


async def test_it_has_the_clients_name_for_the_request(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answer = await get(gateway, "/v1/models", x_request_id="order-7")
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["request_id"] == answer.headers["x-sluice-request-id"]
    assert line["client_request_id"] == "order-7"


@pytest.mark.parametrize("stream", [True, False])
async def test_it_says_how_a_request_ended_whose_client_left(
    gateway: Gateway, double: EngineDouble, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    double.script = lambda prompt: Play(text="word " * 100, interval_s=0.01)
    client = await RawClient.connect(gateway)
    client.send(post(gateway, encode(chat_body(stream=stream))))
    await until(lambda: sum(double.generated.values()) > 3)
    client.reset()
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["finish"] == "disconnected"
    assert line["completion_tokens"] > 0


async def test_each_turn_of_a_websocket_has_a_line(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with ready(gateway) as client:
        await client.chat("t", "hi")
        await client.turn("t")
        await until(lambda: lines(caplog))
        (line,) = lines(caplog)
        assert (line["finish"], line["tenant"]) == ("stop", "acme")
        assert line["completion_tokens"] > 0
    await until(lambda: len(lines(caplog)) == 2)
    assert "finish" not in lines(caplog)[1]


async def test_what_goes_on_after_its_answer_has_a_line_of_its_own(
    gateway: Gateway, double: EngineDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    double.script = lambda prompt: Play(text="x", queued_s=0.2)
    key = await gateway.key("responses")
    body = encode({"model": "tiny", "input": "hi", "background": True})
    client = await RawClient.connect(gateway)
    client.send(post(gateway, body, path="/v1/responses", authorization=f"Bearer {key}"))
    answer = await client.answer()
    await until(lambda: len(lines(caplog)) == 2)
    answered, generated = lines(caplog)
    assert answered["request_id"] == generated["request_id"] == answer.headers["x-request-id"]
    assert "finish" not in answered
    assert (generated["finish"], generated["model"]) == ("stop", "tiny")
    await client.close()


async def test_nobody_fills_the_log_with_a_path(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await get(gateway, "/v1/models/" + "x" * 10_000)
    await until(lambda: lines(caplog))
    assert lines(caplog)[0]["path"] == "/v1/models/".ljust(MAX_PATH_CHARS, "x")


async def test_a_flood_of_refusals_does_not_fill_the_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(LogThrottle, "admit", _admit_at(lambda: now))
    caplog.set_level(logging.INFO)
    client = await RawClient.connect(gateway)
    for body in (*[chat_body(temperature=-1)] * (REFUSALS + 20), chat_body()):
        client.send(post(gateway, encode(body)))
        await client.answer()
    await until(lambda: 200 in [line["status"] for line in lines(caplog)])
    assert [line["status"] for line in lines(caplog)] == [*[400] * REFUSALS, 200]
    now = 0.1 + 1 / REFUSALS_PER_S
    client.send(post(gateway, encode(chat_body(temperature=-1))))
    await client.answer()
    await until(lambda: len(lines(caplog)) == REFUSALS + 2)
    assert lines(caplog)[-1]["left_out"] == 20
    assert all("left_out" not in line for line in lines(caplog)[:-1])
    await client.close()


def _admit_at(clock: Callable[[], float]) -> Callable[[LogThrottle, Hashable], int | None]:
    def admit(throttle: LogThrottle, kind: Hashable) -> int | None:
        throttle._clock = clock
        return known(throttle, kind)

    known = LogThrottle.admit
    return admit


@pytest.mark.parametrize(("level", "logged"), [(logging.INFO, []), (logging.DEBUG, [200])])
async def test_probes_that_succeed_are_for_debugging(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, level: int, logged: list[int]
) -> None:
    caplog.set_level(level)
    assert (await get(gateway, "/livez")).status == 200
    assert (await get(gateway, "/metrics")).status == 401
    await until(lambda: 401 in [line["status"] for line in lines(caplog)])
    assert [line["status"] for line in lines(caplog)] == [*logged, 401]


@pytest.fixture
def stderr() -> Iterator[Callable[[], str]]:
    """What the gateway logs in production at its most talkative."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    logs.configure("debug", "json")
    written = io.StringIO()
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(written)
    yield written.getvalue
    root.handlers[:] = before
    root.setLevel(level)


async def test_neither_prompts_nor_keys_nor_queries_are_logged(
    gateway: Gateway, double: EngineDouble, stderr: Callable[[], str]
) -> None:
    secret = gateway.api_key.split("-")[3]
    double.script = lambda prompt: Play(text="CANARY-ANSWER")
    await chat(gateway, chat_body("CANARY-PROMPT"))
    await chat(gateway, chat_body("CANARY-PROMPT", stream=True, temperature=-1))
    await get(gateway, f"/v1/models?api_key={gateway.api_key}")
    async with ready(gateway) as client:
        await client.chat("t", "CANARY-PROMPT")
        await client.turn("t")
    double.crash()
    await until(lambda: gateway.engine.ready)
    text = stderr()
    assert text.count('"logger": "gateway.access"') == 5
    assert "CANARY" not in text
    assert secret not in text


async def test_a_client_that_left_before_its_answer_is_499(
    gateway: Gateway, double: EngineDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    double.script = lambda prompt: Play(text="x", queued_s=60)
    client = await RawClient.connect(gateway)
    client.send(post(gateway, encode(chat_body())))
    await until(lambda: double.running)
    client.reset()
    await until(lambda: lines(caplog))
    assert lines(caplog)[0]["status"] == 499


async def test_responses_are_counted_by_route(gateway: Gateway) -> None:
    await chat(gateway, chat_body())
    await chat(gateway, chat_body(temperature=-1))
    await get(gateway, "/v1/models/x%0ay")
    await exchange(gateway, b"GET /%41%42 HTTP/1.1\r\nhost: x\r\n\r\n")
    key = await gateway.key("admin")
    text = (await get(gateway, "/metrics", authorization=f"Bearer {key}")).body.decode()
    route = 'sluice_http_responses_total{route="/v1/chat/completions",status='
    assert f'{route}"200"}} 1.0' in text
    assert f'{route}"400"}} 1.0' in text
    assert 'sluice_http_responses_total{route="other",status="401"} 2.0' in text
    assert "AB" not in text
