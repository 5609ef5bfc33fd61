"""``sluice bench``: many clients stream chat completions over HTTP, and a clock watches them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from gateway.bench.load import Level, Load
from gateway.bench.target import Target, opened, served_model
from gateway.errors import ClientError

__all__ = ["Target", "run"]

WARMUP_REQUESTS = 2


def run(
    target: Target,
    levels: Sequence[int],
    *,
    num_requests: int | None,
    max_tokens: int,
    output: Path | None,
) -> None:
    """Measure every level and print a table.

    Raises ``ConfigError`` for a target that cannot be, ``ClientError`` when the server cannot be
    used or any request failed.
    """
    console = Console(stderr=output is not None and str(output) == "-")
    with opened(target, console) as (address, pid):
        model = served_model(address)
        load = Load(
            address,
            model,
            max_tokens=max_tokens,
            replay_tokens_per_s=target.replay_tokens_per_s,
            pid=pid,
        )
        results = [
            _measure(load, level, num_requests or max(32, 4 * level), console) for level in levels
        ]
    console.print(_table(results, model, max_tokens, target.replay_tokens_per_s))
    if output is not None:
        _write(output, address.url, model, max_tokens, results)
    failed = sum(result.errors for result in results)
    if failed:
        raise ClientError(f"{failed} requests failed: the figures above are of the others")


def _measure(load: Load, level: int, num_requests: int, console: Console) -> Level:
    with console.status(f"{level} streams, {num_requests} requests"):
        asyncio.run(load.level(level, min(level, WARMUP_REQUESTS)))
        return asyncio.run(load.level(level, num_requests))


def _table(
    results: Sequence[Level], model: str, max_tokens: int, replay_tokens_per_s: float | None
) -> Table:
    # The engine's own pace is known when it replays: what is above it, the server added.
    interval_ms = 0.0 if replay_tokens_per_s is None else 1000 / replay_tokens_per_s
    pace = "" if replay_tokens_per_s is None else f", {replay_tokens_per_s:g} tokens/s a stream"
    table = Table(
        title=f"{model}, {max_tokens} tokens an answer{pace}; p50 / p99", title_justify="left"
    )
    gap = "gap ms" if replay_tokens_per_s is None else "added gap ms"
    for heading in ("streams", "requests/s", "tokens/s", "TTFT ms", gap, "µs/chunk", "errors"):
        table.add_column(heading, justify="right")
    for result in results:
        cpu_us = result.cpu_us_per_chunk
        table.add_row(
            str(result.concurrency),
            f"{result.requests_per_s:.1f}",
            f"{result.tokens_per_s:.0f}",
            f"{result.ttft_p50_ms:.1f} / {result.ttft_p99_ms:.1f}",
            f"{result.gap_p50_ms - interval_ms:.1f} / {result.gap_p99_ms - interval_ms:.1f}",
            "" if cpu_us is None else f"{cpu_us:.0f}",
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
