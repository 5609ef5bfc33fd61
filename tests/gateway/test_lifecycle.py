"""Going up and going down, stage by stage, without a server that calls for it."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import lifecycle
from gateway.errors import ApiError, Draining
from gateway.generation.generation import Generation
from gateway.lifecycle import ABORT_S
from tenants.errors import StoreUnavailable
from tenants.journal import SUFFIX, Journal
from tenants.types import Principal, UsageEvent
from tests.gateway.engine_double import Life, Play
from tests.gateway.parts import Parts, parts
from tests.gateway.serving import until
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_event, make_key


class WatchedStore(MemoryStore):
    """Can be away, can make its writers wait, and knows whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.open = asyncio.Event()
        self.open.set()
        self.num_closed = 0

    async def record_usage(self, event: UsageEvent) -> bool:
        if self.away:
            raise StoreUnavailable("away")
        await self.open.wait()
        return await super().record_usage(event)

    async def close(self) -> None:
        self.num_closed += 1
        await super().close()


class IdleSession:
    """A WebSocket that closes as soon as it hears of the end."""

    def __init__(self) -> None:
        self.num_told = 0
        self.principal: Principal | None = None

    def drain(self) -> None:
        self.num_told += 1

    def refuse(self, error: ApiError) -> None:
        raise AssertionError("nobody's key has changed")


def stages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().removeprefix("shutdown: ")
        for record in caplog.records
        if record.getMessage().startswith("shutdown: ")
    ]


def playing(play: Play) -> Callable[[str], Play]:
    """The same for any prompt."""
    return lambda prompt: play


async def begin(here: Parts, play: Play, number: int = 1) -> list[Generation]:
    """Requests that the engine works on."""
    here.double.script = playing(play)
    generations = [await here.begin() for _ in range(number)]
    await until(lambda: len(here.double.generated) == number)
    return generations


def read_all(here: Parts, generations: Sequence[Generation]) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(here.answer(generation)) for generation in generations]


ENDLESS = Play(text="x" * 1000, interval_s=0.01)

# -- draining


@pytest.mark.asyncio
async def test_everything_in_its_order(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.lifecycle")
    store, session = WatchedStore(), IdleSession()
    async with parts(model_dir, tmp_path, store=store) as here:
        going = here.services.lifecycle
        going.sessions.add(session)
        assert not going.draining
        (answer,) = read_all(here, await begin(here, Play(text="x" * 20, interval_s=0.01)))
        draining = asyncio.create_task(going.drain())
        await until(lambda: going.draining)
        with pytest.raises(Draining, match="shutting down") as caught:
            await here.begin()
        assert caught.value.retry_after_s == 1
        assert session.num_told == 1
        assert await answer == "x" * 20, "what runs may end"
        await draining
        num_closed_before = store.num_closed
        await going.close()
    assert stages(caplog) == [
        "refuse",
        "tell 1 WebSockets",
        "wait for 1 requests",
        "settle",
        "close",
    ]
    assert (num_closed_before, store.num_closed) == (0, 1)
    assert (await usage_totals(store, here.principal.tenant.id)).completion_tokens == 20


@pytest.mark.asyncio
async def test_the_deadline_ends_what_still_runs(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    async with parts(model_dir, tmp_path, store=store, shutdown_timeout_s=0.1) as here:
        answers = read_all(here, await begin(here, ENDLESS, 3))
        begun = time.monotonic()
        await here.services.lifecycle.drain()
        assert time.monotonic() - begun >= 0.1
        for answer in answers:
            with pytest.raises(Draining):
                await answer
        assert not len(here.services.generations)
    assert "abort 3 requests" in stages(caplog)
    totals = await usage_totals(store, here.principal.tenant.id)
    assert totals.requests == 3
    assert totals.completion_tokens == sum(here.double.generated.values())


@pytest.mark.asyncio
async def test_a_reader_that_does_not_react_is_not_waited_for_long(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "ABORT_S", 0.05)
    async with parts(model_dir, tmp_path, shutdown_timeout_s=0.05) as here:
        (generation,) = await begin(here, ENDLESS)
        begun = time.monotonic()
        await here.services.lifecycle.drain()
        assert time.monotonic() - begun < ABORT_S, "0.1 s on a quiet machine"
        assert len(here.services.generations) == 1
        generation.close()


@pytest.mark.asyncio
async def test_hurrying_cuts_the_wait_short(model_dir: Path, tmp_path: Path) -> None:
    async with parts(model_dir, tmp_path, shutdown_timeout_s=3600.0) as here:
        (answer,) = read_all(here, await begin(here, ENDLESS))
        draining = asyncio.create_task(here.services.lifecycle.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        here.services.lifecycle.hurry()
        with pytest.raises(Draining):
            await answer
        await draining


@pytest.mark.asyncio
async def test_who_hurries_first_does_not_wait_at_all(model_dir: Path, tmp_path: Path) -> None:
    async with parts(model_dir, tmp_path, shutdown_timeout_s=3600.0) as here:
        (answer,) = read_all(here, await begin(here, ENDLESS))
        here.services.lifecycle.hurry()
        await here.services.lifecycle.drain()
        with pytest.raises(Draining):
            await answer


@pytest.mark.asyncio
async def test_each_half_acts_once(model_dir: Path, tmp_path: Path) -> None:
    """The server drains, and so does the lifespan after it."""
    store, session = WatchedStore(), IdleSession()
    async with parts(model_dir, tmp_path, store=store) as here:
        going = here.services.lifecycle
        going.sessions.add(session)
        for _ in range(2):
            await going.drain()
        assert session.num_told == 1
        for _ in range(2):
            await going.close()
    assert store.num_closed == 1


# -- closing


@pytest.mark.asyncio
async def test_nothing_is_left_running(model_dir: Path, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with parts(model_dir, tmp_path, shutdown_timeout_s=0.05) as here:
        here.services.lifecycle.start()
        assert asyncio.all_tasks() > before
        (answer,) = read_all(here, await begin(here, ENDLESS))
        await here.services.lifecycle.drain()
        with pytest.raises(Draining):
            await answer
    await until(lambda: asyncio.all_tasks() == before)
    assert not here.services.engine.ready


@pytest.mark.asyncio
async def test_leases_are_renewed_until_the_last_settlement(
    model_dir: Path, tmp_path: Path
) -> None:
    """Otherwise a neighbour would take the requests for those of a dead process."""
    store = WatchedStore()
    async with parts(model_dir, tmp_path, store=store) as here:
        here.services.lifecycle.start()
        store.open.clear()
        (answer,) = read_all(here, await begin(here, Play(text="hello")))
        assert await answer == "hello"
        closing = asyncio.create_task(here.services.lifecycle.close())
        await asyncio.sleep(0.05)
        assert "quota leases" in _task_names()
        assert not closing.done()
        store.open.set()
        await closing
        assert "quota leases" not in _task_names()
    assert (await usage_totals(store, here.principal.tenant.id)).completion_tokens == 5


def _task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.asyncio
async def test_what_the_store_does_not_take_is_kept_for_the_next_start(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "ABORT_S", 0.2)
    store = WatchedStore()
    async with parts(model_dir, tmp_path, store=store, shutdown_timeout_s=0.1) as here:
        store.away = True
        (answer,) = read_all(here, await begin(here, Play(text="hello")))
        assert await answer == "hello"
        await here.services.lifecycle.drain()
        begun = time.monotonic()
        await here.services.lifecycle.close()
        assert time.monotonic() - begun < ABORT_S, "the deadline is 0.2 s"
    tenant = here.principal.tenant.id
    assert (await usage_totals(store, tenant)).requests == 0
    assert _files(tmp_path) == [SUFFIX]
    store.away = False
    async with parts(model_dir, tmp_path, store=store, tenant_name="globex") as after:
        after.services.lifecycle.start()

        async def settled() -> bool:
            return (await usage_totals(store, tenant)).completion_tokens == 5

        await until(settled)
    assert not _files(tmp_path)


def _files(folder: Path) -> list[str]:
    return [path.suffix for path in folder.iterdir()]


@pytest.mark.asyncio
@pytest.mark.parametrize("reads", [True, False])
async def test_an_engine_that_hangs_takes_no_token_with_it(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """It never says what became of an aborted request: what is known is charged, now or later."""
    monkeypatch.setattr(lifecycle, "ABORT_S", 0.1)
    monkeypatch.setattr(Life, "_abort", lambda *_: None)
    store = WatchedStore()
    async with parts(model_dir, tmp_path, store=store, shutdown_timeout_s=0.05) as here:
        generations = await begin(here, Play(text="x" * 1000, interval_s=0.02))
        answers = read_all(here, generations) if reads else []
        await here.services.lifecycle.drain()
        assert len(here.services.generations) == 1
        await here.services.lifecycle.close()
        await asyncio.gather(*answers, return_exceptions=True)
    assert store.num_closed == 1
    async with parts(model_dir, tmp_path, store=store, tenant_name="globex") as after:
        after.services.lifecycle.start()

        async def settled() -> bool:
            return (await usage_totals(store, here.principal.tenant.id)).requests == 1

        await until(settled)
    totals = await usage_totals(store, here.principal.tenant.id)
    assert totals.completion_tokens == sum(here.double.generated.values())
    assert not _files(tmp_path)


# -- starting


@pytest.mark.asyncio
async def test_settlements_of_the_dead_are_told_at_the_start(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.lifecycle")
    store = WatchedStore()
    _, principal = await make_key(store, "globex")
    dead = Journal(tmp_path)
    dead.append([make_event(principal.key), make_event(principal.key)])
    dead.close()
    async with parts(model_dir, tmp_path, store=store) as here:
        here.services.lifecycle.start()
    assert "startup: settle 2 requests of dead processes" in caplog.messages
    assert (await usage_totals(store, principal.tenant.id)).requests == 2


@pytest.mark.asyncio
async def test_a_journal_that_cannot_be_read_does_not_keep_the_server_down(
    model_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with parts(model_dir, tmp_path) as here:
        (tmp_path / f"broken{SUFFIX}").mkdir()
        here.services.lifecycle.start()
        (answer,) = read_all(here, await begin(here, Play(text="hello")))
        assert await answer == "hello"
    (told,) = [message for message in caplog.messages if message.startswith("startup: ")]
    assert "stay in their files" in told


@pytest.mark.asyncio
async def test_a_grammar_worker_is_started_a_moment_later(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "WARM_UP_AFTER_S", 0.01)
    before = _children()
    async with parts(model_dir, tmp_path) as here:
        here.services.lifecycle.start()
        assert _children() == before, "not before everything else has begun"
        await until(lambda: _children() > before)
    assert _children() == before


@pytest.mark.asyncio
async def test_no_grammar_worker_for_a_server_that_ended_at_once(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "WARM_UP_AFTER_S", 0.05)
    before = _children()
    async with parts(model_dir, tmp_path) as here:
        here.services.lifecycle.start()
    await asyncio.sleep(0.1)
    assert _children() == before


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


# -- what holds however it comes


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=5),
    interval_ms=st.sampled_from([0, 2, 5]),
    wait_ms=st.sampled_from([1, 20, 1000]),
    hurried_ms=st.none() | st.integers(0, 30),
)
def test_the_ledger_has_every_token_however_it_ends(
    model_dir: Path,
    lengths: list[int],
    interval_ms: int,
    wait_ms: int,
    hurried_ms: int | None,
) -> None:
    async def run(journal: Path) -> None:
        store = MemoryStore()
        async with parts(
            model_dir, journal, store=store, shutdown_timeout_s=wait_ms / 1000
        ) as here:
            answers = []
            for length in lengths:
                play = Play(text="x" * length, interval_s=interval_ms / 1000)
                here.double.script = playing(play)
                answers += read_all(here, [await here.begin()])
                await asyncio.sleep(0)
            if hurried_ms is not None:
                asyncio.get_running_loop().call_later(
                    hurried_ms / 1000, here.services.lifecycle.hurry
                )
            await here.services.lifecycle.drain()
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        totals = await usage_totals(store, here.principal.tenant.id)
        assert totals.requests == len(lengths)
        assert totals.completion_tokens == sum(here.double.generated.values())
        assert not len(here.services.generations)
        for length, outcome in zip(lengths, outcomes, strict=True):
            assert outcome == "x" * length or isinstance(outcome, Draining), outcome

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
        assert not _files(Path(folder))
