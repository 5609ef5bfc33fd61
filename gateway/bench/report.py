"""The tables of ``sluice bench``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.bench.figures import Level
from gateway.bench.load import Workload


def print_figures(
    console: Console, model: str, workload: Workload, found: Sequence[tuple[str, Sequence[Level]]]
) -> None:
    """``found``: by the name of the way that was measured."""
    rows = [(name, level) for name, levels in found for level in levels]
    console.print(_streaming(model, workload, rows))
    if any(level.memory is not None or level.aborts for _, level in rows):
        console.print(_server(rows))
    if any(level.cpu_us_by_process for _, level in rows):
        console.print(_processes(rows))
    if any(level.failures for _, level in rows):
        console.print(_failures(rows))


def _streaming(model: str, workload: Workload, rows: Sequence[tuple[str, Level]]) -> Table:
    # The engine's own pace is known when it replays: what is above it, the server added.
    pace = workload.replay_tokens_per_s
    interval_ms = 0.0 if pace is None else 1000 / pace
    said = "" if pace is None else f", {pace:g} tokens/s a stream"
    way = "WebSocket" if workload.uses_websocket else "SSE"
    way += " of Responses" if workload.uses_responses else ""
    way += ", resumable" if workload.resumable else ""
    table = Table(
        title=f"{model} over {way}, {workload.max_tokens} tokens an answer{said}; p50 / p99",
        title_justify="left",
    )
    _add_name(table, rows)
    gap = "gap ms" if pace is None else "added gap ms"
    for heading in ("streams", "requests/s", "tokens/s", "TTFT ms", gap, "µs/chunk", "errors"):
        table.add_column(heading, justify="right")
    for name, level in rows:
        cpu_us = level.cpu_us_per_chunk
        table.add_row(
            *_name(name, rows),
            str(level.concurrency),
            *(f"{level.requests_per_s:.1f}", f"{level.tokens_per_s:.0f}"),
            f"{level.ttft_p50_ms:.1f} / {level.ttft_p99_ms:.1f}",
            f"{level.gap_p50_ms - interval_ms:.1f} / {level.gap_p99_ms - interval_ms:.1f}",
            "" if cpu_us is None else f"{cpu_us:.1f}",
            str(level.errors),
        )
    return table


def _server(rows: Sequence[tuple[str, Level]]) -> Table:
    table = Table(title="The server itself", title_justify="left")
    _add_name(table, rows)
    for heading in ("streams", "memory MiB", "MiB/min", "streams left", "heard after ms"):
        table.add_column(heading, justify="right")
    for name, level in rows:
        memory, slope = "", ""
        if level.memory is not None:
            memory = f"{level.memory.begin:.0f} → {level.memory.end:.0f}"
            if level.memory.slope_per_min is not None:
                slope = f"{level.memory.slope_per_min:+.2f}"
        heard = ""
        if level.abort_p50_ms is not None:
            heard = f"{level.abort_p50_ms:.1f} / {level.abort_p99_ms:.1f}"
        table.add_row(
            *(*_name(name, rows), str(level.concurrency)),
            *(memory, slope, str(level.aborts), heard),
        )
    return table


def _processes(rows: Sequence[tuple[str, Level]]) -> Table:
    table = Table(title="CPU time, µs a chunk; median of the windows", title_justify="left")
    names = list(dict.fromkeys(name for _, level in rows for name in level.cpu_us_by_process))
    _add_name(table, rows)
    for heading in ("streams", "chunks/s", *names, "server's range"):
        table.add_column(heading, justify="right")
    for name, level in rows:
        span = level.cpu_us_range
        costs = [level.cpu_us_by_process.get(one) for one in names]
        table.add_row(
            *(*_name(name, rows), str(level.concurrency), f"{level.chunks_per_s:.0f}"),
            *("" if cost is None else f"{cost:.1f}" for cost in costs),
            "" if span is None else f"{span[0]:.1f} – {span[1]:.1f}",
        )
    return table


def _failures(rows: Sequence[tuple[str, Level]]) -> Table:
    table = Table(title="Why requests failed", title_justify="left")
    _add_name(table, rows)
    for heading in ("streams", "requests", "reason", "the first one's words"):
        table.add_column(heading)
    for name, level in rows:
        for one in level.failures:
            table.add_row(
                *(*_name(name, rows), str(level.concurrency)),
                *(str(one.count), escape(one.reason), escape(one.message)),
            )
    return table


def _add_name(table: Table, rows: Sequence[tuple[str, Level]]) -> None:
    """A column for it, where there is more than one."""
    if len({name for name, _ in rows}) > 1:
        table.add_column("", no_wrap=True)


def _name(name: str, rows: Sequence[tuple[str, Level]]) -> list[str]:
    return [name] if len({name for name, _ in rows}) > 1 else []
