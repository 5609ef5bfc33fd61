"""``sluice bench``: its arithmetic, and its client against servers that behave and that do not."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway import bench
from gateway.bench.failures import Failure
from gateway.bench.figures import Level, summarize
from gateway.bench.load import Load
from gateway.bench.process import Window
from gateway.bench.stream import Prompt, Sample
from gateway.bench.target import opened
from gateway.commands.database import Address
from gateway.errors import ClientError, ConfigError
from tests.gateway.web.served import served

FIRST_TOKEN_S = 0.05
LOAD = bench.Workload(max_tokens=7)
TOKENS = 7


class Server:
    """Streams completions as the gateway does; counts what it is asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.running = self.most_running = 0
        self.connections: set[tuple[str, int]] = set()
        self.fault = ""
        self.num_answered: int | None = None
        """After so many the others hang, if it is set."""

    async def models(self, request: Request) -> Response:
        if request.headers["authorization"] != "Bearer k":
            return JSONResponse({"error": {"message": "Incorrect API key."}}, 401)
        return JSONResponse({"data": [{"id": "scripted"}]})

    async def completions(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        assert request.client is not None
        self.connections.add((request.client.host, request.client.port))
        if self.fault == "503":
            return JSONResponse({"error": {"message": "busy", "code": "overloaded"}}, 503)
        if self.fault == "page":
            return Response("<h1>Bad gateway</h1>", 502)
        hangs = self.num_answered is not None and len(self.bodies) > self.num_answered
        return StreamingResponse(self.events(hangs=hangs), media_type="text/event-stream")

    async def events(self, *, hangs: bool) -> AsyncIterator[bytes]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            await asyncio.sleep(FIRST_TOKEN_S)
            if hangs:
                await asyncio.Event().wait()
            first = event({"choices": [{"delta": {"content": "a"}}]})
            yield first[:10]  # an event may come in pieces, and several in one
            yield first[10:] + event({"choices": [{"delta": {"content": "b"}}]})
            if self.fault == "error":
                yield event({"error": {"message": "the engine died", "type": "server_error"}})
                return
            if self.fault == "short":
                return
            if self.fault == "cut":
                raise ConnectionResetError
            yield event({"choices": [], "usage": {"completion_tokens": TOKENS}})
            yield b"data: [DONE]\n\n"
        finally:
            self.running -= 1

    @contextmanager
    def address(self) -> Iterator[Address]:
        app = Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.completions, methods=["POST"]),
            ]
        )
        with served(app) as url:
            yield Address(url, "k")


def lengths_of(server: Server) -> list[int]:
    return [int(str(body["max_tokens"])) for body in server.bodies]


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def test_a_level_keeps_its_streams_busy() -> None:
    server = Server()
    with server.address() as address:
        level = asyncio.run(Load(address, "scripted", LOAD).level(4, 20))
    assert (level.requests, level.errors) == (20, 0)
    assert 1 < server.most_running <= 4
    assert len(server.connections) == 4  # kept alive, not opened for each request
    assert level.tokens_per_s == pytest.approx(20 * TOKENS / level.duration_s)
    assert FIRST_TOKEN_S * 1000 <= level.ttft_p50_ms <= level.latency_p50_ms
    assert all(body["max_tokens"] == 7 for body in server.bodies)
    assert len({json.dumps(body["messages"]) for body in server.bodies}) == 20


@pytest.mark.parametrize(
    ("fault", "reason", "message"),
    [
        ("503", "HTTP 503 overloaded", "busy"),
        ("page", "HTTP 502", "<h1>Bad gateway</h1>"),
        ("error", "error event server_error", "the engine died"),
        ("cut", "connection lost", "after 2 chunks: closed by the server"),
        ("short", "cut short", "ended after 2 chunks"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_faults_are_counted_not_averaged_in(fault: str, reason: str, message: str) -> None:
    server = Server()
    server.fault = fault
    with server.address() as address:
        level = asyncio.run(Load(address, "scripted", LOAD).level(2, 6))
    assert (level.requests, level.errors) == (6, 6)
    assert level.tokens_per_s == 0
    (failed,) = level.failures
    assert (failed.reason, failed.count, failed.message) == (reason, 6, message)


def test_a_server_that_is_gone_fails_requests_one_by_one() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = Address(f"http://127.0.0.1:{unheard.getsockname()[1]}", "k")
        level = asyncio.run(Load(address, "x", LOAD).level(2, 4))
    (failed,) = level.failures
    assert (failed.reason, failed.count) == ("no connection", 4)
    assert failed.message


def test_streams_are_set_apart_by_their_first_answers() -> None:
    server, pace = Server(), 10.0
    with server.address() as address:
        load = Load(address, "scripted", bench.Workload(max_tokens=10, replay_tokens_per_s=pace))
        level = asyncio.run(load.level(5, 10))
    assert (level.requests, level.errors) == (5 + 10, 0)
    assert sorted(lengths_of(server)) == [2, 4, 6, 8, *[10] * 11]
    assert load.ramp_s(5) == pytest.approx(5 / 250)
    assert load.ramp_s(10**6) == pytest.approx(1.0)


def test_a_level_may_be_cut() -> None:
    server = Server()
    server.num_answered = 3
    with server.address() as address:
        load = Load(address, "scripted", LOAD)
        level = asyncio.run(load.level(3, 0, duration_s=1.5, is_cut=True))
    assert len(server.bodies) == 6, "the last three are never answered"
    assert (level.requests, level.errors) == (3, 0)


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "figures.json"
    with Server().address() as address:
        bench.run(
            bench.Target(url=address.url, key="k"),
            [1, 2],
            num_requests=3,
            workload=LOAD,
            output=output,
        )
    table = capsys.readouterr().out
    assert "tokens/s" in table
    report = json.loads(output.read_text())
    assert report["model"] == "scripted"
    assert [level["concurrency"] for level in report["servers"][0]["levels"]] == [1, 2]
    assert all(level["requests"] == 3 for level in report["servers"][0]["levels"])


def test_a_report_on_stdout_is_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Server().address() as address:
        bench.run(
            bench.Target(url=address.url, key="k"),
            [1],
            num_requests=2,
            workload=LOAD,
            output=Path("-"),
        )
    captured = capsys.readouterr()
    assert json.loads(captured.out)["servers"][0]["levels"][0]["errors"] == 0
    assert "tokens/s" in captured.err


def test_failed_requests_fail_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, output = Server(), tmp_path / "figures.json"
    server.fault = "503"
    with server.address() as address, pytest.raises(ClientError, match="3 requests failed"):
        bench.run(
            bench.Target(url=address.url, key="k"),
            [1],
            num_requests=3,
            workload=LOAD,
            output=output,
        )
    assert "HTTP 503 overloaded" in capsys.readouterr().out
    (level,) = json.loads(output.read_text())["servers"][0]["levels"]
    assert level["failures"] == [{"reason": "HTTP 503 overloaded", "count": 3, "message": "busy"}]


def test_a_refused_key_is_told_in_the_servers_words() -> None:
    with Server().address() as address, pytest.raises(ClientError, match="Incorrect API key"):
        bench.run(
            bench.Target(url=address.url, key="x"),
            [1],
            num_requests=1,
            workload=LOAD,
            output=None,
        )


def test_a_server_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="--key"):
        bench.run(
            bench.Target(url="http://127.0.0.1:1", key=None),
            [1],
            num_requests=1,
            workload=LOAD,
            output=None,
        )


def test_a_pid_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="--pid"):
        bench.run(bench.Target(pids=[1]), [1], num_requests=1, workload=LOAD, output=None)


def test_a_proxy_is_measured_beside_what_is_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, proxy, output = Server(), Server(), tmp_path / "figures.json"
    with server.address() as behind, proxy.address() as front:
        target = bench.Target(url=behind.url, key="k", through=front.url, through_key="k")
        bench.run(target, [2], num_requests=4, workload=LOAD, output=output)
    assert len(server.bodies) == len(proxy.bodies) == 4 + 2  # and what warms them up
    found = json.loads(output.read_text())["servers"]
    assert [one["name"] for one in found] == ["direct", "through"]
    assert [one["url"] for one in found] == [behind.url, front.url]
    table = capsys.readouterr().out
    assert "direct" in table
    assert "through" in table


def test_the_floor_is_measured_before_and_after(tmp_path: Path) -> None:
    server, output = Server(), tmp_path / "figures.json"
    workload = bench.Workload(max_tokens=TOKENS, replay_tokens_per_s=50)
    with (
        pytest.MonkeyPatch.context() as patch,
        server.address() as address,
    ):
        patch.setattr(bench, "WINDOW_S", 0.1)
        target = bench.Target(
            url=address.url, key="k", replay_tokens_per_s=50, pids=[os.getpid()], has_floor=True
        )
        bench.run(target, [2], num_requests=4, workload=workload, output=output)
    before, ours, after = json.loads(output.read_text())["servers"]
    assert (before["name"], after["name"]) == ("floor before", "floor after")
    for floor in (before, after):
        (level,) = floor["levels"]
        assert level["requests"] >= 4
        assert level["errors"] == 0
        # It keeps the pace: no word leaves before it is due, however busy the machine is.
        # Its client's clock runs apart from its own by parts of a millisecond.
        assert level["latency_p50_ms"] > 1000 * (TOKENS - 1) / 50 - 1
        assert level["cpu_us_per_chunk"] is not None
    assert ours["levels"][0]["requests"] == 4 + 2


@pytest.mark.parametrize(
    ("target", "workload", "word"),
    [
        (bench.Target(url="http://x", key="k", has_floor=True), LOAD, "--floor needs --replay"),
        (
            bench.Target(),
            bench.Workload(max_tokens=7, uses_websocket=True, uses_responses=True),
            "--responses",
        ),
        (bench.Target(through="http://x", through_key="k"), LOAD, "--through is for"),
        (bench.Target(url="http://x", key="k", through="http://y"), LOAD, "--through-key"),
        (
            bench.Target(url="http://x", key="k", through="y", through_key="k"),
            LOAD,
            "--through",
        ),
        (bench.Target(url="x", key="k"), LOAD, "--url"),
        (bench.Target(), bench.Workload(max_tokens=7, stalled=0.1), "--duration"),
        (bench.Target(), bench.Workload(max_tokens=7, leaving=0.1, resumable=True), "--leaving"),
        (bench.Target(url="http://x", key="k", has_limits=True), LOAD, "--limits"),
        (
            bench.Target(url="http://x", key="k", through="http://y", through_key="k"),
            bench.Workload(max_tokens=7, resumable=True),
            "--resumable",
        ),
    ],
)
def test_targets_that_cannot_be(target: bench.Target, workload: bench.Workload, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        bench.run(target, [1], num_requests=1, workload=workload)


def test_the_most_streams_need_a_pace() -> None:
    with pytest.raises(ConfigError, match="--replay"):
        bench.run(bench.Target(), [1], num_requests=1, workload=LOAD, most=True)


@given(limit=st.integers(1, 5000), begin=st.integers(1, 5000))
def test_the_search_ends_near_the_limit(limit: int, begin: int) -> None:
    measured: list[int] = []

    def measure(concurrency: int) -> Level:
        measured.append(concurrency)
        return summarize(concurrency, [], Window(1.0, 0, {}))

    found = bench.search(measure, measure(begin), lambda level: level.concurrency <= limit)
    assert [level.concurrency for level in found] == measured[1:]
    best = max((level for level in measured if level <= limit), default=0)
    assert best == limit or best > 0.8 * limit
    assert len(measured) < 30


def test_well_is_within_the_bound_and_without_errors() -> None:
    workload = bench.Workload(max_tokens=7, replay_tokens_per_s=20)
    for gap_s, error, is_well in [(0.07, None, True), (0.08, None, False), (0.05, "no", False)]:
        failure = None if error is None else Failure(error)
        samples = [Sample(num_chunks=2, gaps_s=[gap_s]), Sample(error=failure)]
        assert bench.is_well(summarize(1, samples, Window(1.0, 2, {})), workload) == is_well


@pytest.mark.pg
@pytest.mark.nightly
def test_a_replaying_demo_of_its_own(tmp_path: Path) -> None:
    """Its pace is kept, its CPU time and memory are known, and streams are spread over time."""
    output = tmp_path / "figures.json"
    target = bench.Target(replay_tokens_per_s=50)
    workload = bench.Workload(max_tokens=20, replay_tokens_per_s=50, leaving=0.5, stalled=0.25)
    bench.run(target, [4], num_requests=None, workload=workload, duration_s=3, output=output)
    (server,) = json.loads(output.read_text())["servers"]
    (level,) = server["levels"]
    assert level["requests"] > 8
    assert level["errors"] == 0
    assert 18 < level["gap_p50_ms"] < 100
    assert level["cpu_us_per_chunk"] is not None
    assert level["aborts"] >= 2
    assert 0 < level["abort_p50_ms"] <= level["abort_p99_ms"] < 1000
    begin, end, _ = level["memory"]
    assert begin > 10
    assert end > 10
    assert 2.9 < level["duration_s"] < 10
    assert server["most_streams"] in (0, 4)


@pytest.mark.pg
def test_limits_logs_and_responses_are_measured_where_they_are_wanted() -> None:
    workload = bench.Workload(max_tokens=3, resumable=True)
    with opened(bench.Target(replay_tokens_per_s=100, has_limits=True), Console()) as servers:
        (server,) = servers
        level = asyncio.run(Load(server.address, "demo", workload).level(2, 4))
        responses = bench.Workload(max_tokens=5, uses_responses=True)
        told = asyncio.run(Load(server.address, "demo", responses).level(2, 4))
        unknown = asyncio.run(Load(server.address, "unknown", responses).level(1, 1))
        fields = Prompt(model="demo", content="x", max_tokens=1, resumable=True).fields()
        request = urllib.request.Request(
            f"{server.address.url}/v1/chat/completions",
            data=json.dumps(fields | {"stream": True}).encode(),
            headers={
                "authorization": f"Bearer {server.address.key}",
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request) as response:
            headers = response.headers
    assert (level.requests, level.errors) == (4, 0)
    assert (told.requests, told.errors) == (4, 0)
    assert told.tokens_per_s == pytest.approx(5 * 4 / told.duration_s)
    assert 4 <= told.chunks_per_s * told.duration_s <= 5 * 4
    assert unknown.errors == 1
    assert "x-ratelimit-remaining-tokens" in headers
    assert "x-sluice-stream-id" in headers
