"""``python -m gateway.bench.refusals``: measures what a request that is refused costs the gateway.

It starts PostgreSQL, one worker and an engine with the bundled model, and sends the same chat again
and again over a few connections that are kept open: without a key, with keys that are not valid,
and with those of tenants above a limit. The figure is the CPU time of the worker for one request,
which other work on the machine changes less than the rate; beside it is that of ``bench.floor``,
a bare ASGI application that answers from memory on the same server. PostgreSQL's is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from gateway.bench import target
from gateway.bench.figures import percentile
from gateway.bench.revocations import Site, serving
from tenants import keys

NUM_CONNECTIONS = 8
WARM_UP_S = 0.3
_CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "max_tokens": 100,
    "stream": True,
}
_PEPPER = b"another server's".ljust(32)


class Case(NamedTuple):
    """A request that is refused."""

    name: str
    status: int
    key: str | None
    is_idempotent: bool = False
    """Whether each has an idempotency key of its own."""


class Cost(NamedTuple):
    name: str
    per_s: float
    cpu_us: float


async def cases(site: Site) -> list[Case]:
    """All of them; for those above a limit it makes tenants, which use up what they have."""

    async def limited(name: str, **limits: int) -> str:
        tenant_id = (await site.admin("POST", "/tenants", {"name": name}))["id"]
        await site.admin("PUT", f"/tenants/{tenant_id}/limits", limits)
        made = await site.admin("POST", f"/tenants/{tenant_id}/keys", {"name": name})
        key: str = made["key"]
        await site.ask("POST", "/v1/chat/completions", key, _CHAT | {"max_tokens": 1})
        return key

    stranger = keys.mint(_PEPPER)
    rate = await limited("rate", requests_per_minute=1)
    return [
        Case("401: no key", 401, None),
        Case("401: an unknown key", 401, stranger.text),
        Case("429: the rate of requests", 429, rate),
        Case("429: the rate, idempotency keys", 429, rate, is_idempotent=True),
        Case("429: the month's budget", 429, await limited("budget", monthly_tokens=1)),
    ]


def request_of(host: str, case: Case) -> bytes:
    body = msgspec.json.encode(_CHAT)
    own = "" if case.key is None else f"authorization: Bearer {case.key}\r\n"
    if case.is_idempotent:
        own += f"idempotency-key: {uuid4()}\r\n"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n{own}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def cost(
    name: str,
    address: tuple[str, int],
    request: Callable[[], bytes],
    status: int,
    pid: int,
    seconds: float,
) -> Cost:
    """Send what ``request`` makes over all connections for some seconds. Each must be answered with
    ``status``."""
    process = psutil.Process(pid)
    num_answered, ends_at = 0, time.monotonic() + WARM_UP_S + seconds

    async def client() -> None:
        nonlocal num_answered
        reader, writer = await asyncio.open_connection(*address)
        try:
            while time.monotonic() < ends_at:
                writer.write(request())
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert int(head.split()[1]) == status, head
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                num_answered += 1
        finally:
            writer.close()

    def cpu_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CONNECTIONS):
            group.create_task(client())
        await asyncio.sleep(WARM_UP_S)
        before, num_before, began = cpu_s(), num_answered, time.monotonic()
        await asyncio.sleep(seconds - 0.1)
        num, spent_s = num_answered - num_before, cpu_s() - before
        took_s = time.monotonic() - began
    return Cost(name, num / took_s, 1e6 * spent_s / num)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Site, int]]:
    """A site with one worker, and the worker's process id."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        async with serving(folder, 1) as site:
            yield site, _pid_at(site.port)
    finally:
        shutil.rmtree(folder)


def _pid_at(port: int) -> int:
    """The process of ours that listens on the port."""
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        for one in process.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port:
                return process.pid
    raise AssertionError(f"nobody listens on port {port}")


async def run(seconds: float, num_rounds: int) -> list[Cost]:
    """The median of the rounds for each case, the floor's first."""
    found: dict[str, list[Cost]] = {}
    with target.floor(20.0) as bare:
        host, port = bare.address.url.removeprefix("http://").split(":")
        get = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
        async with served() as (site, pid):
            asked = await cases(site)
            for _ in range(num_rounds):
                address = host, int(port)
                costs = [await cost("floor", address, lambda: get, 200, bare.pids[0], seconds)]
                for case in asked:
                    request = partial(request_of, site.host, case)
                    address = site.host, site.port
                    costs.append(await cost(case.name, address, request, case.status, pid, seconds))
                for one in costs:
                    found.setdefault(one.name, []).append(one)
    return [
        Cost(
            name,
            percentile([one.per_s for one in costs], 50),
            percentile([one.cpu_us for one in costs], 50),
        )
        for name, costs in found.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.refusals", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case and round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    table = Table(title=f"{NUM_CONNECTIONS} connections, p50 of {given.rounds} rounds")
    for heading in ("", "CPU us", "a core could refuse /s", "answered /s"):
        table.add_column(heading, justify="right" if heading else "left")
    for one in asyncio.run(run(given.seconds, given.rounds)):
        rates = f"{1e6 / one.cpu_us:,.0f}", f"{one.per_s:,.0f}"
        table.add_row(one.name, f"{one.cpu_us:.0f}", *rates)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
