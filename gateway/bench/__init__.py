"""``sluice bench``: measures how a server streams chats to many clients at once.

    sluice bench --replay 20 -c 1000 --requests 2000 --max-tokens 400
    sluice bench --replay 20 -c 1000 --max-tokens 400 --duration 600 --stalled 0.05 --leaving 0.02
    sluice bench --replay 20 -c 250 --max-tokens 200 --most
    sluice bench --replay 20 -c 100 --max-tokens 400 --duration 30 --large-bodies 1
    sluice bench --replay 20 -c 1000 --requests 1000 --max-tokens 400 --limits --resumable --floor

By default the key has no limits, so that quota costs nothing, and streams are not logged.
``--limits`` and ``--resumable`` include the costs of both.

The CPU time of a chunk is that of all work of the server's process, divided by the chunks:
authentication, admission, rendering and settlement included. So answers should be long if the cost
of chunks is of interest. The CPU time of other processes that work for the server (the engine,
PostgreSQL), and of this one, which shares the machine with them, is reported beside it.

**Windows.** If the engine's rate is known, each stream begins with an answer of another length, so
that they do not end together. From then on the load is even, and is measured in windows of 3
seconds. The figure is the median of the windows; the least and the most show how steady the machine
was.

**The floor.** Times depend on the machine, and on its other work. ``--floor`` measures the same
load on a bare ASGI application that sends such chunks from memory (``bench.floor``), before and
after the server. The ratio of the two costs can be compared between machines.

**Failures** are counted by reason, with the message of the first one. A reader that stalls
(``--stalled``) is expected to lose its connection, which is no failure; one that reads must get
everything.

**Comparison with a proxy.** ``--through URL`` measures the same load once more through any
OpenAI-compatible proxy before the same server; for example LiteLLM's, with this ``litellm.yaml``
and ``litellm --config litellm.yaml --port 4000 --num_workers 1``::

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
from typing import NamedTuple

import msgspec
import uvloop
from rich.console import Console

from gateway.bench.figures import MIN_WINDOWS, Level
from gateway.bench.load import Load, Workload
from gateway.bench.process import WINDOW_S
from gateway.bench.report import print_figures
from gateway.bench.target import Measured, Target, floor, opened, served_model
from gateway.errors import ClientError, ConfigError

__all__ = ["Target", "Workload", "run"]

WARMUP_REQUESTS = 2
MAX_ADDED_GAP_MS = 25.0
"""The most that the server may add to a stream's gaps at the 99th percentile, for the stream to
count as served well."""
FLOOR = "floor"
"""What the names of the floor's figures begin with."""
SEARCH_PRECISION = 8
"""The search for the most streams is exact to one part in this number."""


class _Figures(msgspec.Struct):
    """The figures of one address."""

    name: str
    url: str
    levels: list[Level]
    most_streams: int
    """The largest level without errors whose added gap at the 99th percentile is small."""


class _Run(NamedTuple):
    """What is measured at each level."""

    workload: Workload
    num_requests: int | None
    duration_s: float | None
    console: Console


def run(
    target: Target,
    levels: Sequence[int],
    *,
    num_requests: int | None,
    workload: Workload,
    duration_s: float | None = None,
    most: bool = False,
    output: Path | None = None,
) -> None:
    """Measure every level and print a table.

    ``most``: go on from the largest level for the most streams that are served well. Raises
    ``ConfigError`` for a target that cannot be, ``ClientError`` when the server cannot be used or
    any request failed.
    """
    if most and workload.replay_tokens_per_s is None:
        raise ConfigError("--most needs --replay: it asks what is added to an engine's own pace")
    if target.has_floor and workload.replay_tokens_per_s is None:
        raise ConfigError("--floor needs --replay, the pace of what it sends")
    if workload.uses_responses and workload.uses_websocket:
        raise ConfigError("--responses is measured over SSE, not with --websocket")
    if target.through is not None and workload.resumable:
        raise ConfigError("--resumable is Sluice's own: a proxy --through does not know it")
    if workload.leaving and workload.resumable:
        raise ConfigError("--leaving measures aborts: --resumable streams outlive their readers")
    if workload.stalled and duration_s is None:
        raise ConfigError("--stalled needs --duration: readers that stall never end by themselves")
    _allow_many_files()
    console = Console(stderr=output is not None and str(output) == "-")
    task = _Run(workload, num_requests, duration_s, console)
    with opened(target, console) as servers:
        model = served_model(servers[0].address)
        begin = _floor_figures("floor before", levels, task) if target.has_floor else []
        found = [_measure_all(server, model, levels, task, most=most) for server in servers]
        end = _floor_figures("floor after", levels, task) if target.has_floor else []
        found = [*begin, *found, *end]
    print_figures(console, model, workload, [(one.name, one.levels) for one in found])
    for one in found:
        if workload.replay_tokens_per_s is not None and not one.name.startswith(FLOOR):
            console.print(
                f"{one.name}: {one.most_streams} streams, the most measured with an added gap of "
                f"at most {MAX_ADDED_GAP_MS:g} ms at the 99th percentile"
            )
    if output is not None:
        _write(output, model, workload, found)
    # A server that has more than its most streams may refuse some.
    failed = sum(level.errors for one in found for level in one.levels)
    if failed and not most:
        raise ClientError(f"{failed} requests failed: the figures above are of the others")


def _measure_all(
    server: Measured, model: str, levels: Sequence[int], task: _Run, *, most: bool
) -> _Figures:
    load = Load(
        server.address,
        model,
        task.workload,
        pids=server.pids,
        others=server.others,
        aborts=server.aborts,
    )

    def measure(level: int) -> Level:
        number = task.num_requests or max(32, 4 * level)
        with task.console.status(f"{server.name}: {level} streams"):
            uvloop.run(load.warm_up(min(level, WARMUP_REQUESTS)))
            return uvloop.run(load.level(level, number, duration_s=task.duration_s))

    found = [measure(level) for level in levels]
    if most:
        found += search(measure, found[-1], lambda level: is_well(level, task.workload))
    good = [level.concurrency for level in found if is_well(level, task.workload)]
    return _Figures(server.name, server.address.url, found, max(good, default=0))


def _floor_figures(name: str, levels: Sequence[int], task: _Run) -> list[_Figures]:
    """Measure the floor, over SSE and with clients that read all, whatever is measured of the
    server; at each level in a new process, and long enough for figures."""
    pace = task.workload.replay_tokens_per_s
    assert pace is not None
    workload = Workload(max_tokens=task.workload.max_tokens, replay_tokens_per_s=pace)
    figures = _Figures(name, "", [], 0)
    for level in levels:
        with (
            floor(pace) as server,
            task.console.status(f"{name}: {level} streams"),
        ):
            load = Load(server.address, FLOOR, workload, pids=server.pids)
            # Until the answers that began while all streams ran have ended.
            duration_s = load.cycle_s(level) + (MIN_WINDOWS + 1) * WINDOW_S
            found = uvloop.run(load.level(level, 0, duration_s=duration_s, is_cut=True))
            figures.levels.append(found)
            figures.url = server.address.url
    return [figures]


def is_well(level: Level, workload: Workload) -> bool:
    """Whether all streams of a level kept the engine's pace."""
    pace = workload.replay_tokens_per_s
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
    """Raise the limit on open files: here and in a demo, each stream has a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _write(output: Path, model: str, workload: Workload, found: Sequence[_Figures]) -> None:
    report = {"model": model, "workload": workload, "servers": found}
    data = msgspec.json.format(msgspec.json.encode(report))
    if str(output) == "-":
        sys.stdout.write(data.decode() + "\n")
    else:
        output.write_bytes(data + b"\n")
