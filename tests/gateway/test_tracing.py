"""Traces of requests as a collector gets them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from engine.text.tokenizer import Tokenizer
from gateway.config import TracingConfig
from gateway.errors import ConfigError
from gateway.logs import JsonFormatter
from gateway.otlp import Attributes
from gateway.tracing import Tracing
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.otlp import Collector, attributes, collector
from tests.gateway.raw_http import RawClient, chat, get, post
from tests.gateway.serving import (
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    until,
)
from tests.gateway.ws_client import ready

ABOVE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
SAMPLED = 1
TOLD: Attributes = {"text": "é", "yes": True, "number": -(2**62), "share": 0.5, "list": ["a", "b"]}
"""One of each kind."""


@asynccontextmanager
async def traced(
    model_dir: Path,
    taken: Collector,
    script: Callable[[str], Play] | None = None,
    sample_ratio: float = 1.0,
    double: EngineDouble | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway that traces. All spans have come once the block has ended."""
    settings = TracingConfig(otlp_endpoint=taken.endpoint, sample_ratio=sample_ratio)
    config = msgspec.structs.replace(make_config(model_dir), tracing=settings)
    double = double or EngineDouble(Tokenizer.load(model_dir))
    if script is not None:
        double.script = script
    async with served(config, double_client(config, double, failover_wait_s=30)) as gateway:
        yield gateway


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_from_its_head_to_the_ledger(model_dir: Path, stream: bool) -> None:
    with collector() as taken:
        async with traced(model_dir, taken) as gateway:
            answer = await chat(gateway, chat_body(stream=stream, seed=7, max_tokens=9))
            await gateway.usage()
    http = taken.named("POST /v1/chat/completions")
    version, trace_id, span_id, flags = answer.headers["traceparent"].split("-")
    assert (version, trace_id, span_id) == ("00", http.trace_id.hex(), http.span_id.hex())
    assert int(flags, 16) & SAMPLED
    assert taken.below(http) == ["admission", "chat tiny"]
    assert taken.below(taken.named("admission")) == ["limits"]
    generation = taken.named("chat tiny")
    assert taken.below(generation) == ["queue", "prefill", "decode", "settle"]
    assert {span.trace_id for span in taken.spans} == {http.trace_id}
    assert taken.service_names == {"sluice"}
    known = attributes(http)
    assert known["http.response.status_code"] == 200
    assert known["http.route"] == "/v1/chat/completions"
    assert known["sluice.request.id"] == answer.headers["x-request-id"]
    assert known["sluice.tenant.name"] == "acme"
    said = attributes(generation)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "tiny"
    assert (said["gen_ai.request.seed"], said["gen_ai.request.max_tokens"]) == (7, 9)
    assert said["gen_ai.usage.input_tokens"] > 0
    assert said["gen_ai.usage.output_tokens"] > 0
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    for before, after in [("queue", "prefill"), ("prefill", "decode"), ("decode", "settle")]:
        gap = taken.named(after).start_time_unix_nano - taken.named(before).end_time_unix_nano
        assert abs(gap) < 50_000_000, (before, after)


@pytest.mark.asyncio
async def test_the_clients_trace_goes_on_and_it_decides_what_is_recorded(model_dir: Path) -> None:
    with collector() as taken:
        async with traced(model_dir, taken, sample_ratio=0.0) as gateway:
            for flags in ("01", "00"):
                answer = await get(gateway, "/v1/models", traceparent=f"{ABOVE}-{flags}")
                version, trace_id, span_id, sampled = answer.headers["traceparent"].split("-")
                assert (version, trace_id, sampled) == ("00", ABOVE.split("-")[1], flags)
                assert span_id != ABOVE.split("-")[2]
            for nonsense in ("", "00-zz-00-01", "x" * 4000):
                answer = await get(gateway, "/v1/models", traceparent=nonsense)
                assert not int(answer.headers["traceparent"][-2:], 16) & SAMPLED
            await get(gateway, "/livez")
    (span,) = taken.spans
    assert span.parent_span_id.hex() == ABOVE.split("-")[2]


@pytest.mark.asyncio
async def test_failures_are_marked(model_dir: Path) -> None:
    def script(prompt: str) -> Play:
        slow = "slow" in prompt
        return Play(text="x", queued_s=60) if slow else Play(error="lost", error_code="internal")

    with collector() as taken:
        async with traced(model_dir, taken, script) as gateway:
            assert (await chat(gateway, chat_body())).status == 500
            assert (await chat(gateway, chat_body(temperature=-1))).status == 400
            client = await RawClient.connect(gateway)
            client.send(post(gateway, encode(chat_body("slow"))))
            await until(lambda: len(gateway.app.state.services.generations))
            client.reset()
            await gateway.usage(requests=2)
    chats = [span for span in taken.spans if span.name == "POST /v1/chat/completions"]
    assert [attributes(span).get("error.type") for span in chats] == ["500", None, "499"]
    failed, left = (span for span in taken.spans if span.name == "chat tiny")
    assert attributes(failed)["error.type"] == "error"
    assert taken.below(left) == ["queue", "settle"]
    (refused,) = (
        span for span in taken.spans if attributes(span).get("error.type", "").endswith("Error")
    )
    assert refused.name == "admission"


@pytest.mark.asyncio
async def test_a_request_that_moves_keeps_its_trace(model_dir: Path) -> None:
    play = Play(text="word " * 20, interval_s=0.01)
    double = EngineDouble(Tokenizer.load(model_dir), script=lambda prompt: play)
    with collector() as taken:
        async with traced(model_dir, taken, double=double) as gateway:
            chatting = asyncio.create_task(chat(gateway, chat_body()))
            await until(lambda: double.generated)
            double.crash()
            assert (await chatting).status == 200
            await gateway.usage()
    generation = taken.named("chat tiny")
    assert attributes(generation)["sluice.request.moves"] == 1
    assert taken.below(generation) == ["queue", "prefill", "decode", "settle"]


@pytest.mark.asyncio
async def test_turns_of_a_websocket_are_below_its_span(model_dir: Path) -> None:
    with collector() as taken:
        async with traced(model_dir, taken) as gateway:
            async with ready(gateway) as client:
                for turn in ("a", "b"):
                    await client.chat(turn, "hi")
                    await client.turn(turn)
            await gateway.usage(requests=2)
    socket = taken.named("GET /v1/chat")
    assert taken.below(socket).count("chat tiny") == 2
    assert attributes(socket)["http.response.status_code"] == 101


@pytest.mark.asyncio
async def test_nothing_that_was_said_is_in_a_span(model_dir: Path) -> None:
    with collector() as taken:
        async with traced(model_dir, taken, lambda prompt: Play(text="CANARY-ANSWER")) as gateway:
            await chat(gateway, chat_body("CANARY-PROMPT", user="CANARY-USER", stop=["CANARY"]))
            await get(gateway, f"/v1/models?key={gateway.api_key}")
            await get(gateway, "/v1/CANARY")
            await gateway.usage()
    secret = gateway.api_key.split("-")[3]
    assert len(taken.spans) > 8
    for span in taken.spans:
        assert b"CANARY" not in span.SerializeToString()
        assert secret.encode() not in span.SerializeToString()


@pytest.mark.asyncio
async def test_lines_of_the_log_name_the_trace(model_dir: Path) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    access = logging.getLogger("gateway.access")
    access.addHandler(handler)
    before = access.level
    access.setLevel(logging.INFO)
    try:
        with collector() as taken:
            async with traced(model_dir, taken, sample_ratio=0.0) as gateway:
                answer = await chat(gateway, chat_body())
                await until(written.getvalue)
    finally:
        access.removeHandler(handler)
        access.setLevel(before)
    line = json.loads(written.getvalue())
    assert answer.headers["traceparent"].split("-")[1:3] == [line["trace_id"], line["span_id"]]
    assert not taken.spans


@pytest.mark.asyncio
async def test_a_collector_that_is_away_costs_no_answer(model_dir: Path) -> None:
    with collector() as taken:
        pass
    async with traced(model_dir, taken) as gateway:
        assert (await chat(gateway, chat_body())).status == 200


def test_a_batch_is_sent_again_with_the_operators_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,x-one=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-one=2")
    with collector() as taken:
        taken.refuses = 1
        tracing = Tracing(TracingConfig(otlp_endpoint=taken.endpoint, sample_ratio=1.0))
        came = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
        trace = tracing.begin("POST", came, TOLD)
        assert trace.stage is not None
        trace.stage.begin("below").end(error="Oops")
        trace.stage.end()
        tracing.close()
    assert (taken.headers["x-tenant"], taken.headers["x-one"]) == ("a b", "2")
    root = taken.named("POST")
    assert attributes(root) == TOLD
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert (root.trace_state, root.kind) == ("vendor=1", Span.SPAN_KIND_SERVER)
    below = taken.named("below")
    assert (below.parent_span_id, below.kind) == (root.span_id, Span.SPAN_KIND_INTERNAL)
    assert below.status.code == Status.STATUS_CODE_ERROR
    assert below.start_time_unix_nano <= below.end_time_unix_nano


def test_without_an_endpoint_nothing_is_imported() -> None:
    program = (
        "import sys, gateway.app, gateway.processes.server\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_packages_the_setting_names_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match=r"tracing\.otlp_endpoint needs .*sluice\[otel\]"):
        Tracing(TracingConfig(otlp_endpoint="http://127.0.0.1:4318/v1/traces"))


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ConfigError, match=r"tracing\.otlp_endpoint: 'collector:4318' is no URL"):
        TracingConfig(otlp_endpoint="collector:4318")
