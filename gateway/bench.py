"""``sluice bench``: many clients stream chat completions over HTTP, and a clock watches them.

The client shares the machine with the server, so it must be cheap: one connection for each stream,
httptools for HTTP, msgspec for the chunks.
"""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.commands.database import Address
from gateway.errors import ClientError, ConfigError

WARMUP_REQUESTS = 2
START_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0

_NAMES = ("Ada", "Bo", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou")
_ANIMALS = ("fox", "owl", "cat", "bear", "duck", "frog", "horse", "mouse", "rabbit", "wolf")


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta


class Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class ErrorMessage(msgspec.Struct, frozen=True):
    message: str


class Chunk(msgspec.Struct, frozen=True):
    """As much of a chunk as is measured."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorMessage | None = None


class Sample(msgspec.Struct):
    """One request. Times in seconds since it was sent."""

    ttft_s: float = math.nan
    total_s: float = math.nan
    tokens: int = 0
    error: str | None = None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one number of concurrent streams."""

    concurrency: int
    requests: int
    errors: int
    duration_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    latency_p50_ms: float
    latency_p99_ms: float


class Stream(asyncio.Protocol):
    """One keep-alive connection that sends one request at a time and times its events."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Chunk)
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._buffer = b""
        self._sample = Sample()
        self._sent_at = 0.0
        self._finished: asyncio.Future[None] | None = None

    async def request(self, head: bytes, body: bytes) -> Sample:
        """Send one request; its sample when the response has ended."""
        assert self._transport is not None
        self._sample, self._buffer = Sample(), b""
        self._parser = httptools.HttpResponseParser(self)
        self._finished = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(head + body)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._finished
        except TimeoutError:
            self._sample.error = f"no end after {REQUEST_TIMEOUT_S:g} s"
            self._transport.abort()
        self._sample.total_s = time.perf_counter() - self._sent_at
        return self._sample

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._finished is not None and not self._finished.done():
            self._sample.error = self._sample.error or "the connection was closed"
            self._finished.set_result(None)

    # -- httptools

    def on_body(self, body: bytes) -> None:
        *events, self._buffer = (self._buffer + body).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    self._on_chunk(self._decoder.decode(line[6:]))

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._finished is not None
        status = self._parser.get_status_code()
        if status != 200:
            self._sample.error = f"HTTP {status}: {self._buffer.decode(errors='replace')[:200]}"
        if not self._finished.done():
            self._finished.set_result(None)

    def _on_chunk(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._sample.error = chunk.error.message
        if chunk.usage is not None:
            self._sample.tokens = chunk.usage.completion_tokens
        if math.isnan(self._sample.ttft_s) and chunk.choices and chunk.choices[0].delta.content:
            self._sample.ttft_s = time.perf_counter() - self._sent_at


class Load:
    """Requests against one server."""

    def __init__(self, address: Address, model: str, *, max_tokens: int) -> None:
        self._address = address
        self._model = model
        self._max_tokens = max_tokens
        parts = urlsplit(address.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        self._num_sent = 0

    async def level(self, concurrency: int, num_requests: int) -> Level:
        """Keep ``concurrency`` streams busy until ``num_requests`` have ended."""
        remaining = iter(range(num_requests))
        samples: list[Sample] = []
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, num_requests)):
                group.create_task(self._worker(remaining, samples))
        return summarize(concurrency, samples, time.perf_counter() - begun)

    async def _worker(self, remaining: Iterator[int], samples: list[Sample]) -> None:
        stream = await self._connect()
        try:
            for _ in remaining:
                if stream.closed:
                    stream = await self._connect()
                samples.append(await stream.request(*self._next()))
        finally:
            stream.close()

    async def _connect(self) -> Stream:
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_connection(
                Stream, self._host, self._port, ssl=self._tls or None
            )
        except OSError as exc:
            reason = exc.strerror or exc
            raise ClientError(f"{self._address.url} does not answer ({reason})") from None
        return stream

    def _next(self) -> tuple[bytes, bytes]:
        """Head and body of a request that no other one of this run equals for a long while."""
        number, self._num_sent = self._num_sent, self._num_sent + 1
        name, animal = _NAMES[number % len(_NAMES)], _ANIMALS[number % len(_ANIMALS)]
        content = f"Tell me a story about a {animal} named {name}. ({number})"
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self._max_tokens,
                "ignore_eos": True,  # every answer is as long as the others
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"Host: {self._host}:{self._port}\r\n"
            f"Authorization: Bearer {self._address.key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode(), body


def summarize(concurrency: int, samples: Sequence[Sample], duration_s: float) -> Level:
    """Figures over the requests that succeeded."""
    good = [sample for sample in samples if sample.error is None]
    ttft = [sample.ttft_s for sample in good if not math.isnan(sample.ttft_s)]
    total = [sample.total_s for sample in good]
    return Level(
        concurrency=concurrency,
        requests=len(samples),
        errors=len(samples) - len(good),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        tokens_per_s=sum(sample.tokens for sample in good) / duration_s,
        ttft_p50_ms=1000 * percentile(ttft, 50),
        ttft_p99_ms=1000 * percentile(ttft, 99),
        latency_p50_ms=1000 * percentile(total, 50),
        latency_p99_ms=1000 * percentile(total, 99),
    )


def percentile(values: Sequence[float], rank: float) -> float:
    """The nearest-rank percentile: always a value that was measured; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)]


def run(
    url: str | None,
    key: str | None,
    levels: Sequence[int],
    *,
    num_requests: int | None,
    max_tokens: int,
    output: Path | None,
) -> None:
    """Measure every level and print a table.

    Raises ``ClientError`` when the server cannot be used or any request failed.
    """
    console = Console(stderr=output is not None and str(output) == "-")
    with _server(url, key, console) as address:
        model = _served_model(address)
        load = Load(address, model, max_tokens=max_tokens)
        results = [
            _measure(load, level, num_requests or max(32, 4 * level), console) for level in levels
        ]
    console.print(_table(results, model, max_tokens))
    if output is not None:
        _write(output, address.url, model, max_tokens, results)
    failed = sum(result.errors for result in results)
    if failed:
        raise ClientError(f"{failed} requests failed: the figures above are of the others")


def _measure(load: Load, level: int, num_requests: int, console: Console) -> Level:
    with console.status(f"{level} streams, {num_requests} requests"):
        asyncio.run(load.level(level, min(level, WARMUP_REQUESTS)))
        return asyncio.run(load.level(level, num_requests))


def _table(results: Sequence[Level], model: str, max_tokens: int) -> Table:
    table = Table(title=f"{model}, {max_tokens} tokens an answer", title_justify="left")
    for heading in ("streams", "requests/s", "tokens/s", "TTFT p50", "TTFT p99", "errors"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            str(result.concurrency),
            f"{result.requests_per_s:.1f}",
            f"{result.tokens_per_s:.0f}",
            f"{result.ttft_p50_ms:.0f} ms",
            f"{result.ttft_p99_ms:.0f} ms",
            str(result.errors),
        )
    return table


def _write(output: Path, url: str, model: str, max_tokens: int, results: Sequence[Level]) -> None:
    report = {"url": url, "model": model, "max_tokens": max_tokens, "levels": results}
    data = msgspec.json.format(msgspec.json.encode(report))
    if str(output) == "-":
        sys.stdout.write(data.decode() + "\n")
    else:
        output.write_bytes(data + b"\n")


@contextmanager
def _server(url: str | None, key: str | None, console: Console) -> Iterator[Address]:
    """The server that was named, or a demo of our own in a folder that does not stay."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must look like http://host:port, got {url}")
        if key is None:
            raise ConfigError(f"no key for {url}; give one with --key or SLUICE_API_KEY")
        yield Address(url.rstrip("/"), key)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        with console.status("Starting a demo to measure"):
            process, address = _start_demo(Path(folder))
        try:
            yield address
        finally:
            _stop(process)


def _start_demo(folder: Path) -> tuple[subprocess.Popen[bytes], Address]:
    from gateway.data_dir import DataDir

    command = [sys.executable, "-m", "gateway", "demo", "--port", "0", "--data-dir", str(folder)]
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


def _served_model(address: Address) -> str:
    """The first model of ``/v1/models``. Raises ``ClientError``."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(
        f"{address.url}/v1/models", headers={"Authorization": f"Bearer {address.key}"}
    )
    try:
        with urlopen(request, timeout=10) as response:
            models = msgspec.json.decode(response.read())["data"]
            return str(models[0]["id"])
    except HTTPError as exc:
        try:
            message = msgspec.json.decode(exc.read())["error"]["message"]
        except (msgspec.DecodeError, KeyError, TypeError):
            message = f"HTTP {exc.code}; is this a Sluice server?"
        raise ClientError(f"{address.url}: {message}") from None
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        raise ClientError(f"{address.url} does not answer ({reason}); is it running?") from None
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ClientError(f"{address.url} is not a Sluice server") from None
