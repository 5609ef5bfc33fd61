"""``sluice bench``: many clients stream chats over HTTP, and a clock watches them.

    sluice bench --replay 20 -c 1000 --requests 2000 --max-tokens 400
    sluice bench --replay 20 -c 1000 --max-tokens 400 --duration 600 --stalled 0.05 --leaving 0.02
    sluice bench --replay 20 -c 250 --max-tokens 200 --most
    sluice bench --replay 20 -c 1000 --requests 1000 --max-tokens 400 --limits --resumable --floor

A key without limits is not asked about, and a stream that cannot be resumed is not logged:
``--limits`` and ``--resumable`` measure both.

What is counted as a chunk's CPU time is all that the server's process does from the first request
to the last: authentication, admission, rendering and settling, spread over the chunks. So answers
should be long where the chunks are of interest.

**The floor.** Times are a machine's, and a busy machine's are longer. ``--floor`` measures the same
load once more on a bare ASGI application that sends such chunks out of its memory
(``bench.floor``): what a chunk costs here over what it costs there holds anywhere.

**Another proxy beside it.** ``--through URL`` measures the same load once more through any
OpenAI-compatible proxy that has the same server behind it. LiteLLM's, for one, with this
``litellm.yaml`` and ``litellm --config litellm.yaml --port 4000 --num_workers 1``::

    model_list:
      - model_name: demo
        litellm_params: {model: openai/demo, api_base: "URL/v1", api_key: "KEY"}
    litellm_settings: {drop_params: false}
    general_settings: {master_key: "MASTER"}

URL and KEY are those of ``sluice demo --replay 20``, MASTER is any long random text after ``sk-``;
then ``sluice bench --replay 20 --url URL --key KEY --pid PID --through http://127.0.0.1:4000
--through-key MASTER --through-pid PID``. A process of a server with several workers is one of them:
give ``--pid`` once for each.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from gateway.bench.load import Level, Load, Manner
from gateway.bench.report import print_figures
from gateway.bench.target import Measured, Target, opened, served_model
from gateway.errors import ClientError, ConfigError

__all__ = ["Manner", "Target", "run"]

WARMUP_REQUESTS = 2
MAX_ADDED_GAP_MS = 25.0
"""What a stream may lose to the server at the 99th percentile, to count as served well."""
SEARCH_PRECISION = 8
"""The search for the most streams ends within one part in so many."""


class _Figures(msgspec.Struct):
    """Of one address."""

    name: str
    url: str
    levels: list[Level]
    most_streams: int
    """The largest level without errors whose added gap at the 99th percentile is small."""


def run(
    target: Target,
    levels: Sequence[int],
    *,
    num_requests: int | None,
    manner: Manner,
    duration_s: float | None = None,
    most: bool = False,
    output: Path | None = None,
) -> None:
    """Measure every level and print a table.

    ``most``: go on from the largest level for the most streams that are served well. Raises
    ``ConfigError`` for a target that cannot be, ``ClientError`` when the server cannot be used or
    any request failed.
    """
    if most and manner.replay_tokens_per_s is None:
        raise ConfigError("--most needs --replay: it asks what is added to an engine's own pace")
    if target.has_floor and manner.uses_websocket:
        raise ConfigError("--floor is measured over SSE, not with --websocket")
    if manner.uses_responses and manner.uses_websocket:
        raise ConfigError("--responses is measured over SSE, not with --websocket")
    if target.through is not None and manner.resumable:
        raise ConfigError("--resumable is Sluice's own: a proxy --through does not know it")
    if manner.leaving and manner.resumable:
        raise ConfigError("--leaving measures aborts: --resumable streams outlive their readers")
    if manner.stalled and duration_s is None:
        raise ConfigError("--stalled needs --duration: readers that stall never end by themselves")
    _allow_many_files()
    console = Console(stderr=output is not None and str(output) == "-")
    with opened(target, console) as servers:
        model = served_model(servers[0].address)
        found = [
            _measure_all(server, model, manner, levels, num_requests, duration_s, most, console)
            for server in servers
        ]
    print_figures(console, model, manner, [(one.name, one.levels) for one in found])
    for one in found:
        if manner.replay_tokens_per_s is not None:
            console.print(
                f"{one.name}: {one.most_streams} streams, the most measured with an added gap of "
                f"at most {MAX_ADDED_GAP_MS:g} ms at the 99th percentile"
            )
    if output is not None:
        _write(output, model, manner, found)
    # Beyond its most streams a server may well refuse some.
    failed = sum(level.errors for one in found for level in one.levels)
    if failed and not most:
        raise ClientError(f"{failed} requests failed: the figures above are of the others")


def _measure_all(
    server: Measured,
    model: str,
    manner: Manner,
    levels: Sequence[int],
    num_requests: int | None,
    duration_s: float | None,
    most: bool,
    console: Console,
) -> _Figures:
    load = Load(server.address, model, manner, pids=server.pids, aborts=server.aborts)

    def measure(level: int) -> Level:
        number = num_requests or max(32, 4 * level)
        with console.status(f"{server.name}: {level} streams"):
            uvloop.run(load.level(min(level, WARMUP_REQUESTS), min(level, WARMUP_REQUESTS)))
            return uvloop.run(load.level(level, number, duration_s=duration_s))

    found = [measure(level) for level in levels]
    if most:
        found += search(measure, found[-1], lambda level: is_well(level, manner))
    good = [level.concurrency for level in found if is_well(level, manner)]
    return _Figures(server.name, server.address.url, found, max(good, default=0))


def is_well(level: Level, manner: Manner) -> bool:
    """Whether all streams of a level kept the engine's pace."""
    pace = manner.replay_tokens_per_s
    added_ms = level.gap_p99_ms - (0.0 if pace is None else 1000 / pace)
    return level.errors == 0 and added_ms <= MAX_ADDED_GAP_MS


def search(
    measure: Callable[[int], Level], last: Level, is_good: Callable[[Level], bool]
) -> list[Level]:
    """Levels on the way from ``last`` to the largest good one: doubled or halved, then bisected."""
    found = [last]
    good, bad = (last.concurrency, 0) if is_good(last) else (0, last.concurrency)
    while not bad or (bad - good) * SEARCH_PRECISION > bad:
        level = 2 * good if not bad else (good + bad) // 2
        if level == good:
            break
        found.append(measure(level))
        if is_good(found[-1]):
            good = level
        else:
            bad = level
    return found[1:]


def _allow_many_files() -> None:
    """A socket for each stream, here and in a demo that is started for the purpose."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _write(output: Path, model: str, manner: Manner, found: Sequence[_Figures]) -> None:
    report = {"model": model, "manner": manner, "servers": found}
    data = msgspec.json.format(msgspec.json.encode(report))
    if str(output) == "-":
        sys.stdout.write(data.decode() + "\n")
    else:
        output.write_bytes(data + b"\n")
