"""One example: gateways on ports, clients that come and go, and what must hold when all have gone.

Nothing runs for nobody, nothing is held, the ledger has each request once and to the token, nobody
was told anything that is not so, and the log has no error of ours.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import socket
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from engine.text.tokenizer import Tokenizer
from gateway import lifecycle
from gateway.services import Services
from tenants.changes import Change
from tenants.keys import mint
from tenants.limits import Limits
from tests.gateway.departures.answers import Heard
from tests.gateway.departures.late_loop import late_loop
from tests.gateway.departures.late_store import late_store
from tests.gateway.departures.plan import GRACE_S, STALL_S, Plan, script
from tests.gateway.departures.visiting import Guests
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import chat, exchange, get, post
from tests.gateway.serving import (
    SECRETS,
    Gateway,
    chat_body,
    double_client,
    make_config,
    served,
    until,
)
from tests.memory_store.store import MemoryStore

SOON_S = 10.0
"""Within this time nothing is held, on however busy a machine."""
_LOST_CODES = ("response_events_gone", "stream_not_found", "worker_lost")
"""What may be said of a stream whose worker has gone, or is about to."""
SMALL_BUFFER = 8192
"""Bytes that the kernel takes for a client that does not read."""


def run_example(plan: Plan, model_dir: Path) -> None:
    """Raises ``AssertionError``."""
    with _handlers_as_before(), _nothing_said() as said:
        make_loop = lambda: late_loop(plan.seed, rate=plan.late, is_uvloop=plan.is_uvloop)  # noqa: E731
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(Example(plan, model_dir).run())
        del runner
        gc.collect()  # what was not waited for says so when it goes
    if plan.crashes_s is not None:
        said = [line for line in said if "engine died, restarting" not in line]
    assert not said, "\n".join(said)


@contextmanager
def _handlers_as_before() -> Iterator[None]:
    """Servers in one process end in any order, and each puts back what it found."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _nothing_said() -> Iterator[list[str]]:
    """Collects errors in the log, and Python's warnings."""
    said: list[str] = []

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(logging.Formatter().format(record))

    handler, root = Errors(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
        said += [str(one.message) for one in caught]
    finally:
        root.removeHandler(handler)


class Example:
    def __init__(self, plan: Plan, model_dir: Path) -> None:
        self._plan = plan
        self._model_dir = model_dir
        self._luck = random.Random(plan.seed)
        self._store: MemoryStore
        self._gateways: list[Gateway] = []
        self._doubles: list[EngineDouble] = []
        self._guests: Guests
        self._tasks_before: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        before = asyncio.all_tasks()
        with mock.patch.object(lifecycle, "WARM_UP_AFTER_S", 3600.0):  # no schema is asked for
            async with self._serving():
                async with asyncio.TaskGroup() as group:
                    for visit in self._plan.visits:
                        group.create_task(self._guests.come(visit), name=f"visit {visit.number}")
                    group.create_task(self._disturb())
                await self._check_idle()
                for heard in self._guests.heard:
                    self._check_heard(heard)
                await self._check_what_is_kept()
                await self._check_idle()
        for gateway in self._gateways:
            assert not _held(gateway.app.state.services), _held(gateway.app.state.services)
        await self._check_ledger()
        await _soon(lambda: asyncio.all_tasks() <= before)

    # -- serving

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        plan = self._plan
        self._store = late_store(self._luck, plan.store_late_s)
        config = make_config(
            self._model_dir,
            models={"price_prompt": 1_000_000, "price_completion": 3_000_000},
            flush_interval_ms=plan.flush_interval_ms,
            resume_grace_s=GRACE_S,
            send_timeout_s=STALL_S,
            heartbeat_s=0.03,
            shutdown_timeout_s=0.2,
            max_stream_log_bytes=plan.max_stream_log_bytes,
            ws_outbox_bytes=4096,
        )
        async with AsyncExitStack() as stack:
            for number in range(plan.num_workers):
                double = EngineDouble(Tokenizer.load(self._model_dir), script, max_model_len=8192)
                beside = self._gateways[0] if number else None
                gateway = await stack.enter_async_context(
                    served(config, double_client(config, double), store=self._store, beside=beside)
                )
                self._doubles.append(double)
                self._gateways.append(gateway)
                services: Services = gateway.app.state.services
                services.quota.slice_tokens = 16
                for listener in gateway.server.servers[0].sockets:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            await self._prepare()
            self._tasks_before = asyncio.all_tasks()
            yield

    async def _prepare(self) -> None:
        first = self._gateways[0]
        limits = Limits(monthly_tokens=10**9, max_concurrent=None)
        if self._plan.max_concurrent is not None:
            limits = Limits(
                monthly_tokens=10**9, max_concurrent=self._plan.max_concurrent, max_queued=1000
            )
        if self._plan.is_limited:
            await self._store.put_limits(first.tenant.id, "tenant", first.tenant.id, limits)
        keys = []
        for name in ("kept", "revoked"):
            minted = mint(SECRETS.key_pepper)
            await self._store.create_key(
                first.tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name=name,
                scopes=["chat", "responses"],
            )
            keys.append(minted)
        self._revoked = keys[1].public_id
        self._guests = Guests(self._gateways, (keys[0].text, keys[1].text))
        for gateway in self._gateways:
            worker_id = gateway.app.state.services.peers.worker_id
            await until(partial(self._is_known, worker_id))

    async def _is_known(self, worker_id: str) -> bool:
        return await self._store.shared.find_worker(worker_id) is not None

    async def _disturb(self) -> None:
        async def at(when_s: float | None, what: Any) -> None:
            if when_s is not None:
                await asyncio.sleep(when_s)
                await what()

        async def crash() -> None:
            self._doubles[0].crash()

        async def revoke() -> None:
            await self._store.revoke_key(self._revoked)
            for gateway in self._gateways:
                gateway.app.state.services.revocations.on_change(Change(public_id=self._revoked))

        async def drain() -> None:
            self._gateways[0].server.should_exit = True

        plan = self._plan
        await asyncio.gather(
            at(plan.crashes_s, crash), at(plan.revokes_s, revoke), at(plan.drains_s, drain)
        )

    # -- what must hold

    async def _check_idle(self) -> None:
        """Soon, without anybody's doing."""

        def left() -> dict[str, object]:
            found: dict[str, object] = {}
            for number, gateway in enumerate(self._gateways):
                services: Services = gateway.app.state.services
                found |= {f"{number}: {name}": what for name, what in _held(services).items()}
                found[f"{number}: double"] = self._doubles[number].running
                found[f"{number}: connections"] = gateway.server.server_state.connections
            tasks = asyncio.all_tasks() - self._tasks_before - {asyncio.current_task()}
            found["tasks"] = {task for task in tasks if "test" not in task.get_name()}
            return {name: what for name, what in found.items() if what}

        try:
            await _soon(lambda: not left())
        except TimeoutError:
            raise AssertionError(f"held: {left()}") from None

    def _check_heard(self, heard: Heard) -> None:
        plan, visit = self._plan, heard.visit
        may_be_cut = heard.num_leaves > 0 or heard.name in self._guests.ended
        may_fail = plan.may_fail(visit)
        if heard.num_leaves and heard.is_whole:  # what it came back for may be gone
            may_fail |= heard.status in (404, 410) or heard.code == "stream_position_gone"
        if heard.name in self._guests.ended or (heard.status == 404 and visit.ends == "delete"):
            may_fail |= heard.status == 404 or heard.code == "stream_not_found"
        if plan.has_small_log:  # a reader may be too slow for it
            may_fail |= "stream_position_gone" in (heard.code if heard.is_whole else "")
        try:
            heard.check(may_fail=may_fail, may_be_cut=may_be_cut)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{heard}") from error

    async def _check_what_is_kept(self) -> None:
        """Streams, responses and recorded answers, at a worker that still serves."""
        if self._plan.drains_s is not None and len(self._gateways) == 1:
            return
        gateway = self._gateways[-1]
        await until(lambda: gateway.engine.ready)
        for name, all_heard in self._guests.named.items():
            await self._check_stream(gateway, name, all_heard)
        by_key: defaultdict[str, list[Heard]] = defaultdict(list)
        for heard in self._guests.heard:
            if heard.visit.idempotency_key is not None:
                by_key[heard.visit.idempotency_key].append(heard)
        for key, all_heard in by_key.items():
            await self._check_recorded(gateway, key, all_heard)
        answer = await chat(gateway, chat_body("are you there?"))
        assert answer.json()["choices"][0]["message"]["content"] == "still here"

    async def _check_stream(self, gateway: Gateway, name: str, all_heard: list[Heard]) -> None:
        visit = all_heard[0].visit
        key = f"Bearer {self._guests.api_keys[0]}"
        if visit.way == "responses":
            answer = await get(gateway, f"/v1/responses/{name}", authorization=key)
            if name in self._guests.deleted:
                assert answer.status == 404
            else:
                assert answer.status == 200 or name in self._guests.deleting, answer
            if answer.status == 200:
                kept = answer.json()
                assert kept["status"] in ("completed", "cancelled", "failed"), kept
                all_heard[0].check_object(
                    kept, may_fail=self._plan.may_fail(visit), may_be_cut=True
                )
        if not visit.stream or not (visit.resumable or visit.background):
            return
        request = self._guests.again(visit, name).replace(
            self._guests.api_keys[1].encode(), self._guests.api_keys[0].encode()
        )
        again = await exchange(gateway, request)
        if again.status != 200:
            assert name in self._guests.deleting or again.json()["error"]["code"] in (
                "stream_position_gone",
                *(_LOST_CODES if self._may_be_lost else ()),
            ), (name, again)
            return
        for heard in all_heard:
            if heard.status == 200 and not (heard.is_whole and heard.code):
                told = heard.whole_events
                assert again.body == told if heard.is_whole else again.body.startswith(told), (
                    name,
                    told,
                    again.body,
                )

    @property
    def _may_be_lost(self) -> bool:
        return self._plan.drains_s is not None

    async def _check_recorded(self, gateway: Gateway, key: str, all_heard: list[Heard]) -> None:
        good = {heard.body for heard in all_heard if heard.is_good and not heard.num_leaves}
        assert len(good) <= 1 or self._plan.has_small_log, (key, good)
        visit = all_heard[0].visit
        request = post(
            gateway,
            visit.body,
            path=visit.path,
            key=self._guests.api_keys[0],
            idempotency_key=key,
        )
        again = Heard(visit)
        answer = await exchange(gateway, request)
        again.status, again.headers, again.body = answer.status, answer.headers, answer.body
        again.is_whole = True
        if good and not (self._may_be_lost or self._plan.has_small_log):
            assert {again.body} == good
            assert again.headers.get("idempotent-replayed") == "true"
        if not good:
            again.check(may_fail=self._plan.has_small_log, may_be_cut=True)
        if again.name is not None and visit.background:
            await until(lambda: not _held(gateway.app.state.services))

    async def _check_ledger(self) -> None:
        """Each request once, and to the token."""
        generated: defaultdict[UUID, int] = defaultdict(int)
        prompts: dict[UUID, int] = {}
        for double in self._doubles:
            for request in double.requests:
                request_id = UUID(hex=request.request_id.rpartition("-")[0])
                generated[request_id] += double.generated.get(request.request_id, 0)
                prompts[request_id] = len(request.prompt_token_ids)
        ledger = self._store._ledger
        assert set(ledger) == set(generated)
        for request_id, event in ledger.items():
            wanted = (prompts[request_id], generated[request_id])
            if event.status == "error" and not generated[request_id]:
                wanted = (0, 0)
            assert (event.prompt_tokens, event.completion_tokens) == wanted, event
            assert event.cost_micro == event.prompt_tokens + 3 * event.completion_tokens
        assert not self._store._quota.reservations
        for scope in self._store._quota._scopes.values():
            assert (scope.num_running, scope.num_queued) == (0, 0)
            tokens = sum(e.prompt_tokens + e.completion_tokens for e in ledger.values())
            assert scope.month_tokens == tokens


async def _soon(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds. By both clocks: that of an idle ``OwnTimeLoop`` runs several
    times as fast as the kernel's timers, and as ``time.monotonic``, by which some of us wait."""
    began_at = time.monotonic()
    while True:
        try:
            await until(condition, within_s=SOON_S)
            return
        except TimeoutError:
            if time.monotonic() - began_at > SOON_S:
                raise


def _held(services: Services) -> dict[str, object]:
    """What a gateway holds for requests, by what it is."""
    streams, engine = services.streams, services.engine
    held: dict[str, object] = {
        "generations": services.generations._live,
        "settlements": services.generations._settlements,
        "holds": services.quota._holds,
        "unlisted": services.quota._to_be_listed,
        "undoing": services.quota._undoing,
        "streams": streams._running,
        "readers": streams.readers,
        "archiving": streams._archiving,
        "read": [r for r in streams._log._records.values() if r.num_readers or r.waiting],
        "responses": services.responses._running,
        "storing": services.responses._tasks,
        "sessions": services.lifecycle.sessions,
        "without an engine": [one.moves._waiting for one in engine.values() if len(one.moves)],
        "on probation": [one.moves._probation for one in engine.values() if one.moves._probation],
        **{
            f"{what} of engine {one.name}": held
            for one in engine.engines
            for what, held in {
                "streams": one._streams,
                "queue": one._queued if one.ready else (),
                "parked": one._parked,
                "unsent": one._updates,
                "leaving": one._leaving,
            }.items()
        },
    }
    return {name: what for name, what in held.items() if what}
