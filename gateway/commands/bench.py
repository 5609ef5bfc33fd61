"""``sluice bench``: measures streaming. ``gateway.bench`` describes how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.database import ApiKey

Url = Annotated[str | None, typer.Option(help="A running server; by default a demo is started.")]
Concurrency = Annotated[
    list[int] | None,
    typer.Option("--concurrency", "-c", min=1, help="Concurrent streams; may be repeated."),
]
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests per level; by default 4 per stream, 32 at least."),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of each answer.")]
Replay = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="The server sends each stream this many tokens/s: measure what it adds to that. "
        "Without --url the demo replays a fixed text.",
    ),
]
WebSocket = Annotated[
    bool, typer.Option("--websocket", help="Use the WebSocket /v1/chat in place of SSE.")
]
UsesResponses = Annotated[
    bool, typer.Option("--responses", help="From /v1/responses, not /v1/chat/completions.")
]
Duration = Annotated[
    float | None, typer.Option(min=1, help="Seconds for each level, in place of --requests.")
]
Stalled = Annotated[
    float, typer.Option(min=0, max=1, help="Share of streams whose readers stop reading.")
]
Leaving = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Share of requests whose clients leave; without --url, it is measured when the "
        "engine hears of it.",
    ),
]
LargeBodies = Annotated[
    float, typer.Option(min=0, help="Bodies of 4 MB a second, sent beside the streams.")
]
Most = Annotated[
    bool, typer.Option("--most", help="Search for the most streams that keep the engine's pace.")
]
Pids = Annotated[
    list[int] | None,
    typer.Option(help="A process of the server at --url, to measure its CPU time and memory."),
]
Through = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible proxy in front of --url, measured beside it."),
]
ThroughKey = Annotated[str | None, typer.Option(help="The key for that proxy.")]
ThroughPids = Annotated[
    list[int] | None, typer.Option(help="A process of that proxy, to measure; may be repeated.")
]
Floor = Annotated[
    bool, typer.Option("--floor", help="Also measure a server that only sends chunks.")
]
HasLimits = Annotated[
    bool, typer.Option("--limits", help="Give the demo's tenant limits that are never reached.")
]
Resumable = Annotated[bool, typer.Option("--resumable", help="Use resumable streams.")]
Output = Annotated[
    Path | None, typer.Option("--json", help="Write the figures to this file; - for stdout.")
]


def bench(
    url: Url = None,
    key: ApiKey = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    max_tokens: MaxTokens = 64,
    replay: Replay = None,
    websocket: WebSocket = False,
    responses: UsesResponses = False,
    duration: Duration = None,
    stalled: Stalled = 0.0,
    leaving: Leaving = 0.0,
    large_bodies: LargeBodies = 0.0,
    most: Most = False,
    pid: Pids = None,
    through: Through = None,
    through_key: ThroughKey = None,
    through_pid: ThroughPids = None,
    floor: Floor = False,
    limits: HasLimits = False,
    resumable: Resumable = False,
    output: Output = None,
) -> None:
    """Measure streaming over HTTP: tokens/s, time to first token, gaps, CPU and memory."""
    from engine.garbage import tune_collector
    from gateway import bench as benchmark

    tune_collector()  # or the pauses of this process would be taken for the server's
    target = benchmark.Target(
        url=url,
        key=key,
        replay_tokens_per_s=replay,
        pids=pid or [],
        through=through,
        through_key=through_key,
        through_pids=through_pid or [],
        has_floor=floor,
        has_limits=limits,
    )
    workload = benchmark.Workload(
        max_tokens=max_tokens,
        replay_tokens_per_s=replay,
        uses_websocket=websocket,
        uses_responses=responses,
        resumable=resumable,
        stalled=stalled,
        leaving=leaving,
        large_bodies=large_bodies,
    )
    benchmark.run(
        target,
        concurrency or [1, 16, 64],
        num_requests=requests,
        workload=workload,
        duration_s=duration,
        most=most,
        output=output,
    )
