from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.errors import ObjectNotFound, StoreUnavailable
from tenants.journal import SUFFIX, Journal
from tenants.limits import Price
from tenants.store import Store
from tenants.types import ApiKey, UsageEvent
from tenants.usage import Ledger
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore
from tests.tenants.full_disk import no_file_above
from tests.tenants.samples import make_event, make_key

pytestmark = pytest.mark.asyncio


class FaultyStore(MemoryStore):
    """The in-memory store behind a line that fails: before the write, or after it (the answer is
    lost), as the faults say; afterwards it works.
    """

    def __init__(self, faults: Iterator[str] | None = None) -> None:
        super().__init__()
        self.faults = faults if faults is not None else iter(())
        self.away = False
        self.gate: asyncio.Event | None = None
        self.num_attempts = 0
        self.num_concurrent = 0
        self.max_concurrent = 0

    async def record_usage(self, event: UsageEvent) -> bool:
        self.num_attempts += 1
        self.num_concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.num_concurrent)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            fault = next(self.faults, "none")
            if self.away or fault == "before":
                raise StoreUnavailable("away")
            written = await super().record_usage(event)
            if fault == "after":
                raise StoreUnavailable("the answer was lost")
            return written
        finally:
            self.num_concurrent -= 1


async def faulty(faults: Iterator[str] | None = None) -> tuple[FaultyStore, ApiKey]:
    store = FaultyStore(faults)
    _, principal = await make_key(store)
    return store, principal.key


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.001)


def writers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "ledger writer"]


class TestSettle:
    async def test_writes_once(self, store: Store) -> None:
        _, principal = await make_key(store)
        ledger = Ledger(store)
        event = make_event(principal.key)
        assert await ledger.settle(event) is True
        assert await ledger.settle(event) is False
        totals = await usage_totals(store, principal.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (1, 20)
        assert ledger.num_pending == 0

    async def test_holds_few_of_the_store_s_connections(self) -> None:
        store, key = await faulty()
        ledger = Ledger(store, num_writers=3)
        await asyncio.gather(*(ledger.settle(make_event(key)) for _ in range(30)))
        assert store.max_concurrent == 3

    async def test_one_writer_tries_while_the_store_is_away(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, num_writers=4, backoff_s=0.01, max_backoff_s=0.01)
        await asyncio.gather(*(ledger.settle(make_event(key)) for _ in range(8)))
        await eventually(lambda: len(writers()) == 1)
        store.max_concurrent = 0
        for _ in range(8):
            await ledger.settle(make_event(key))
            assert len(writers()) == 1
        num_attempts = store.num_attempts
        await eventually(lambda: store.num_attempts > num_attempts + 2)
        assert store.max_concurrent == 1
        store.away = False
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 16
        began, ended = (record.getMessage() for record in caplog.records)
        assert began == "The ledger keeps usage until the store is back: away"
        assert ended.startswith("The store takes usage again (16 events wait), after ")

    async def test_half_of_the_backlog_is_for_requests_that_run(self) -> None:
        store, key = await faulty()
        store.gate = asyncio.Event()
        ledger = Ledger(store, max_pending=6)
        settling = []
        for num_pending in range(6):
            assert ledger.num_pending == num_pending
            assert ledger.has_room == (num_pending < 3)
            settling.append(asyncio.create_task(ledger.settle(make_event(key))))
            await asyncio.sleep(0)
        store.gate.set()
        assert all(await asyncio.gather(*settling))

    async def test_without_a_journal_nothing_is_counted_or_found(self) -> None:
        ledger = Ledger(MemoryStore())
        assert ledger.begin(make_event(), Price()) is None
        assert ledger.replay() == 0

    async def test_no_task_stays_when_all_is_written(self) -> None:
        store, key = await faulty()
        await Ledger(store).settle(make_event(key))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_refused_event_is_raised_and_logged_in_full(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, principal = await make_key(store)
        ledger = Ledger(store)
        nobody = make_event()
        with pytest.raises(ObjectNotFound, match="key"):
            await ledger.settle(nobody)
        assert logged_ids(caplog) == [str(nobody.request_id)]
        assert ledger.num_pending == 0
        assert await ledger.settle(make_event(principal.key)) is True


class TestCancellation:
    @pytest.mark.parametrize("num_steps", range(6))
    async def test_at_any_point_leaves_the_event_settled_once(self, num_steps: int) -> None:
        store, key = await faulty()
        ledger = Ledger(store)
        event = make_event(key)
        task = asyncio.create_task(ledger.settle(event))
        await asyncio.sleep(0)  # a task cancelled before its first step never ran at all
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await ledger.drain(30.0) == 0
        assert await ledger.settle(event) is False
        assert (await usage_totals(store, key.tenant_id)).requests == 1

    async def test_while_the_store_hangs(self) -> None:
        store, key = await faulty()
        store.gate = asyncio.Event()
        ledger = Ledger(store)
        task = asyncio.create_task(ledger.settle(make_event(key)))
        await eventually(lambda: store.num_concurrent == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.gate.set()
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 1

    async def test_of_the_caller_of_a_refused_event_leaves_no_unseen_exception(self) -> None:
        store, _ = await faulty()
        store.gate = asyncio.Event()
        unseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        ledger = Ledger(store)
        task = asyncio.create_task(ledger.settle(make_event()))
        await eventually(lambda: store.num_concurrent == 1)
        task.cancel()
        await asyncio.wait([task])
        store.gate.set()
        assert await ledger.drain(30.0) == 0
        del task
        gc.collect()
        assert unseen == []

    async def test_of_the_writer_puts_the_event_back(self) -> None:
        store, key = await faulty()
        store.gate = asyncio.Event()
        ledger = Ledger(store)
        settling = asyncio.create_task(ledger.settle(make_event(key)))
        await eventually(lambda: store.num_concurrent == 1)
        (writer,) = writers()
        writer.cancel()
        assert await settling is True
        store.gate.set()
        assert ledger.num_pending == 1
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 1


class TestOutage:
    async def test_settling_returns_and_the_event_is_written_later(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, backoff_s=0.001, max_backoff_s=0.002)
        events = [make_event(key) for _ in range(10)]
        assert all(await asyncio.gather(*(ledger.settle(event) for event in events)))
        assert ledger.num_pending == 10
        assert await ledger.settle(events[0]) is False
        store.away = False
        await eventually(lambda: ledger.num_pending == 0)
        assert (await usage_totals(store, key.tenant_id)).requests == 10

    async def test_those_behind_the_first_failure_do_not_wait_for_the_next(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, num_writers=1, backoff_s=3600, max_backoff_s=3600)
        async with asyncio.timeout(30):
            settled = await asyncio.gather(*(ledger.settle(make_event(key)) for _ in range(3)))
        assert all(settled)
        assert ledger.num_pending == 3
        store.away = False
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 3

    async def test_one_writer_probes_with_growing_pauses(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, backoff_s=0.01, max_backoff_s=10)
        await asyncio.gather(*(ledger.settle(make_event(key)) for _ in range(50)))
        assert len(writers()) == 1
        store.num_attempts = store.max_concurrent = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(0.3)
        # Pauses of at least 5, 10, 20, … ms lie between the attempts; the first may be over.
        assert 0.005 * (2 ** (store.num_attempts - 2) - 1) <= loop.time() - began
        assert store.max_concurrent <= 1
        assert await ledger.drain(0.0) == 50

    async def test_all_writers_come_back_with_the_store(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, num_writers=3, backoff_s=0.001, max_backoff_s=0.002)
        await asyncio.gather(*(ledger.settle(make_event(key)) for _ in range(50)))
        store.away, store.max_concurrent = False, 0
        assert await ledger.drain(30.0) == 0
        assert store.max_concurrent == 3

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.sampled_from(["none", "before", "after"]), max_size=40),
        st.lists(st.integers(0, 5), max_size=30),
        st.integers(1, 5),
    )
    async def test_nothing_lost_and_nothing_double(
        self, faults: list[str], numbers: list[int], num_writers: int
    ) -> None:
        """Any faults, any repetitions of six requests: each is in the ledger once."""
        store, key = await faulty(iter(faults))
        ledger = Ledger(store, num_writers=num_writers, backoff_s=0.0, max_backoff_s=0.0)
        events = [make_event(key, completion_tokens=10**number) for number in range(6)]
        answers = await asyncio.gather(*(ledger.settle(events[number]) for number in numbers))
        assert await ledger.drain(30.0) == 0
        totals = await usage_totals(store, key.tenant_id)
        assert totals.requests == len(set(numbers))
        assert totals.completion_tokens == sum(10**number for number in set(numbers))
        if "after" not in faults:
            assert sum(answers) == len(set(numbers))

    async def test_beyond_the_bound_settlements_wait_for_room(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, max_pending=4, backoff_s=0.001, max_backoff_s=0.001)
        assert ledger.has_room
        await ledger.settle(make_event(key))
        assert ledger.has_room
        for _ in range(3):
            await ledger.settle(make_event(key))
            assert not ledger.has_room
        more = [make_event(key) for _ in range(6)]
        waiting = [asyncio.create_task(ledger.settle(event)) for event in more]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert ledger.num_pending == 4
        assert await ledger.settle(more[0]) is False
        assert caplog.text.count("4 settlements wait for the store already") == 1
        store.away = False
        assert await asyncio.gather(*waiting) == [True] * 6
        assert await ledger.drain(30.0) == 0
        assert ledger.has_room
        assert logged_ids(caplog) == []
        assert (await usage_totals(store, key.tenant_id)).requests == 10

    async def test_one_that_waits_for_room_is_its_callers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, max_pending=1, backoff_s=0.001, max_backoff_s=0.001)
        kept, left, given_up = (make_event(key) for _ in range(3))
        await ledger.settle(kept)
        waiting, cancelled = (
            asyncio.create_task(ledger.settle(event)) for event in (left, given_up)
        )
        await asyncio.sleep(0.01)
        cancelled.cancel()
        assert await ledger.drain(0.05) == 2
        assert logged_ids(caplog) == [str(kept.request_id), str(left.request_id)]
        store.away = False
        assert await ledger.drain(30.0) == 0
        assert await waiting is True
        assert (await usage_totals(store, key.tenant_id)).requests == 2
        assert await ledger.settle(given_up) is True


class TestJournal:
    async def test_what_is_kept_outlives_the_process(self, tmp_path: Path) -> None:
        store, key = await faulty()
        store.away = True
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal, backoff_s=10, max_backoff_s=10)
        events = [make_event(key, completion_tokens=number) for number in range(5)]
        assert all(await asyncio.gather(*(ledger.settle(event) for event in events)))
        for writer in writers():
            writer.cancel()
        journal.close()  # as the end of a process does

        store.away = False
        heir = Journal(tmp_path)
        ledger = Ledger(store, journal=heir)
        assert ledger.replay() == 5
        assert await ledger.settle(events[0]) is False
        assert await ledger.drain(30.0) == 0
        totals = await usage_totals(store, key.tenant_id)
        assert (totals.requests, totals.completion_tokens) == (5, 10)
        assert heir.is_empty
        heir.close()
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []

    async def test_what_a_dead_process_counted_is_settled(self, tmp_path: Path) -> None:
        store, key = await faulty()
        dead = Journal(tmp_path)
        opening = make_event(key, status="error", completion_tokens=0)
        running = Ledger(store, journal=dead).begin(opening, Price(completion=2_000_000))
        assert running is not None
        running.counts[0], running.counts[1] = 7, 64
        dead.close()  # as the end of a process does
        heir = Journal(tmp_path)
        ledger = Ledger(store, journal=heir)
        assert (ledger.replay(), await ledger.drain(30.0)) == (1, 0)
        totals = await usage_totals(store, key.tenant_id)
        assert (totals.requests, totals.completion_tokens, totals.cost_micro) == (1, 7, 14)
        running.end()
        heir.close()

    async def test_replay_of_what_the_ledger_has_changes_nothing(self, tmp_path: Path) -> None:
        store, key = await faulty()
        event = make_event(key)
        dead = Journal(tmp_path)
        dead.append([event, event])
        dead.close()
        await Ledger(store).settle(event)
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        ledger.replay()
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 1
        assert journal.is_empty
        journal.close()

    async def test_what_a_full_disk_lets_it_take_over_is_settled(self, tmp_path: Path) -> None:
        store, key = await faulty()
        events = [make_event(key), make_event(key)]
        for number, event in enumerate(events):
            (tmp_path / f"{number}{SUFFIX}").write_bytes(msgspec.json.encode(event) + b"\n")
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        size = (tmp_path / f"0{SUFFIX}").stat().st_size
        with no_file_above(size + size // 2), pytest.raises(OSError, match="File too large"):
            ledger.replay()
        assert await ledger.drain(30.0) == 0
        assert journal.is_empty
        assert (await usage_totals(store, key.tenant_id)).requests == 1
        assert ledger.replay() == 1
        assert await ledger.drain(30.0) == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 2
        journal.close()

    async def test_what_dies_later_is_found_by_those_who_live(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("tenants.usage.ADOPT_S", 0.005)
        store, key = await faulty()
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        adopt, num_looks = journal.adopt, 0

        def unreadable() -> list[UsageEvent]:
            nonlocal num_looks
            num_looks += 1
            raise PermissionError(13, "Permission denied")

        looking = asyncio.create_task(ledger.run())
        monkeypatch.setattr(journal, "adopt", unreadable)
        await eventually(lambda: num_looks > 3)
        monkeypatch.setattr(journal, "adopt", adopt)
        await eventually(lambda: "can be read again" in caplog.text)
        assert (caplog.text.count("stay in their files"), "Settling" in caplog.text) == (1, False)
        dead = Journal(tmp_path)
        dead.append([make_event(key), make_event(key)])
        dead.close()
        await eventually(lambda: "Settling 2 requests" in caplog.text)
        await eventually(lambda: journal.is_empty)  # written, though nobody settles or drains
        looking.cancel()
        await asyncio.wait([looking])
        assert ledger.num_pending == 0
        assert (await usage_totals(store, key.tenant_id)).requests == 2
        journal.close()

    async def test_nothing_is_journaled_while_the_store_answers(self, tmp_path: Path) -> None:
        store, key = await faulty()
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        store.gate = asyncio.Event()
        settling = asyncio.create_task(ledger.settle(make_event(key)))
        await eventually(lambda: store.num_concurrent == 1)
        assert journal.is_empty
        store.gate.set()
        await settling
        assert ledger.replay() == 0
        journal.close()

    async def test_file_is_cleared_though_new_usage_keeps_coming(self, tmp_path: Path) -> None:
        store, key = await faulty(iter(["before"]))
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal, num_writers=1, backoff_s=0, max_backoff_s=0)
        await ledger.settle(make_event(key))
        assert not journal.is_empty
        coming = [asyncio.create_task(ledger.settle(make_event(key))) for _ in range(20)]
        await eventually(lambda: journal.is_empty)
        await asyncio.gather(*coming)
        assert await ledger.drain(30.0) == 0
        journal.close()

    async def test_full_disk_leaves_it_in_memory_and_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, key = await faulty(iter(["before"]))
        journal = Journal(tmp_path)

        def fail(events: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(journal, "append", fail)
        ledger = Ledger(store, journal=journal, backoff_s=0, max_backoff_s=0)
        assert await ledger.settle(make_event(key))
        assert await ledger.drain(30.0) == 0
        assert "1 settlements only in memory" in caplog.text
        assert (await usage_totals(store, key.tenant_id)).requests == 1
        journal.close()


class TestDrain:
    async def test_with_nothing_to_do_returns_at_once(self) -> None:
        assert await Ledger(MemoryStore()).drain(0.0) == 0

    async def test_hurries_a_long_pause(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, backoff_s=0.01, max_backoff_s=600)
        await ledger.settle(make_event(key))
        ledger._backoff._next_s = 600  # the next pause
        await asyncio.sleep(0.05)
        store.away = False
        async with asyncio.timeout(30):
            assert await ledger.drain(60.0) == 0

    async def test_at_the_deadline_nobody_waits_for_a_store_that_hangs(
        self, tmp_path: Path
    ) -> None:
        store, key = await faulty()
        store.gate = asyncio.Event()
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        settling = asyncio.create_task(ledger.settle(make_event(key)))
        await eventually(lambda: store.num_concurrent == 1)
        assert await ledger.drain(0.05) == 1
        async with asyncio.timeout(30):
            assert await settling is True
        assert not journal.is_empty
        store.gate.set()
        assert await ledger.drain(30.0) == 0
        assert journal.is_empty
        journal.close()

    async def test_afterwards_pauses_are_as_long_as_before(self) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store, backoff_s=0.005, max_backoff_s=600)
        await ledger.settle(make_event(key))
        ledger._num_failures = 20
        assert await ledger.drain(0.05) == 1
        await asyncio.sleep(0.02)  # the last of the short ones
        num_attempts = store.num_attempts
        assert num_attempts > 1
        await asyncio.sleep(0.1)
        assert store.num_attempts == num_attempts
        await ledger.close()

    async def test_gives_up_at_the_deadline_and_logs_what_is_left(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, key = await faulty()
        store.away = True
        ledger = Ledger(store)
        events = [make_event(key) for _ in range(3)]
        await asyncio.gather(*(ledger.settle(event) for event in events))
        async with asyncio.timeout(30):
            assert await ledger.drain(0.1) == 3
        assert sorted(logged_ids(caplog)) == sorted(str(event.request_id) for event in events)


class TestClose:
    async def test_without_writers(self) -> None:
        ledger = Ledger(MemoryStore())
        await ledger.close()
        await ledger.close()

    async def test_what_is_left_stays_for_the_next_process(self, tmp_path: Path) -> None:
        """The store that comes back a moment too late finds nobody who writes to it."""
        store, key = await faulty()
        store.away = True
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal, backoff_s=0.01)
        event = make_event(key)
        await ledger.settle(event)
        assert await ledger.drain(0.05) == 1
        await ledger.close()
        assert not writers()
        store.away = False
        num_attempts = store.num_attempts
        await asyncio.sleep(0.05)
        assert store.num_attempts == num_attempts
        journal.close()
        after = Journal(tmp_path)
        assert list(after.adopt()) == [event]
        after.clear()
        after.close()

    async def test_in_the_middle_of_a_write(self, tmp_path: Path) -> None:
        store, key = await faulty()
        store.gate = asyncio.Event()
        journal = Journal(tmp_path)
        ledger = Ledger(store, journal=journal)
        settling = asyncio.create_task(ledger.settle(make_event(key)))
        await eventually(lambda: store.num_concurrent == 1)
        await ledger.close()
        assert await settling is True, "kept, as in an outage"
        assert not journal.is_empty
        assert ledger.num_pending == 1
        journal.clear()
        journal.close()


def logged_ids(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The requests whose usage went to the log: the line ends with the whole event."""
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    return [json.loads(line[line.index("{") :])["request_id"] for line in lines]
