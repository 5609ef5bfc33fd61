from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answers.turns import TurnEvents
from gateway.errors import Gone, InvalidRequestError, RateLimited, StreamNotFound
from gateway.generation.delta import Delta
from gateway.generation.events import Around, Made, Text, as_message, as_sse
from gateway.streams.log import SWEEP_S, StreamLog
from gateway.streams.record import (
    ITEM_OVERHEAD_BYTES,
    MAX_READ_ITEMS,
    MAX_STRETCH_BYTES,
    STREAM_OVERHEAD_BYTES,
    Cursor,
)
from tests.gateway.loop_clock import LoopClock

ACME, OTHER = uuid4(), uuid4()


def make(
    *, max_stream_bytes: int = 10**6, max_tenant_bytes: int = 10**7, retention_s: float = 60.0
) -> StreamLog:
    return StreamLog(
        max_stream_bytes=max_stream_bytes,
        max_tenant_bytes=max_tenant_bytes,
        retention_s=retention_s,
    )


def size_of(log: StreamLog, tenant_id: UUID) -> int:
    """The bytes that count for a tenant's bound."""
    share = log._shares.get(tenant_id)
    return 0 if share is None else share.num_bytes


async def read_all(log: StreamLog, stream_id: str, after: int = 0) -> list[bytes]:
    found: list[bytes] = []
    cursor = Cursor(after)
    while some := await log.read(stream_id, cursor):
        found += some
    return found


@pytest.mark.asyncio
async def test_readers_get_everything_from_where_they_are() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    readers = [asyncio.create_task(read_all(log, "s", after)) for after in (0, 0)]
    items = [b"%d" % i for i in range(MAX_READ_ITEMS * 2 + 5)]
    for start in range(0, len(items), 7):
        log.append("s", items[start : start + 7])
        await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    await log.end("s")
    assert await asyncio.gather(*readers) == [items, items]
    assert await read_all(log, "s", 300) == items[300:]
    assert await log.read("s", Cursor(len(items))) == []


@pytest.mark.asyncio
async def test_what_comes_is_taken_at_once_until_it_is_not() -> None:
    log, taken, is_free = make(), list[bytes](), True

    def take(item: bytes, now: float) -> bool:
        if is_free:
            taken.append(item)
        return is_free

    await log.create("s", ACME, "sse")
    log.append("s", [b"0"])
    assert await log.read("s", Cursor(0, take)) == [b"0"]  # was there already
    reading = asyncio.create_task(log.read("s", Cursor(1, take)))
    other = asyncio.create_task(log.read("s", Cursor(1)))
    await asyncio.sleep(0)
    log.append("s", [b"1"])
    log.append("s", [b"2", b"3"])
    assert taken == [b"1", b"2", b"3"]
    assert await other == [b"1", b"2", b"3"]
    is_free = False
    log.append("s", [b"4"])
    is_free = True
    log.append("s", [b"5"])  # behind one that waits to be read
    assert await reading == [b"4", b"5"]
    assert taken == [b"1", b"2", b"3"]


class Follower:
    """Reads a stream, and takes what comes at once while it is free."""

    def __init__(self, log: StreamLog, *, takes: bool) -> None:
        self.is_free = True
        self.found: list[bytes] = []
        self.cursor = Cursor(0, self.take if takes else None)
        self._log = log
        self._reading = asyncio.create_task(self._read())

    def take(self, item: bytes, now: float) -> bool:
        if self.is_free:
            self.found.append(item)
        return self.is_free

    async def _read(self) -> None:
        while items := await self._log.read("s", self.cursor):
            self.found.extend(items)

    async def leave(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        assert self.cursor.after == len(self.found)

    async def come_back(self) -> None:
        await self.leave()
        self._reading = asyncio.create_task(self._read())

    async def end(self) -> list[bytes]:
        await self._reading
        return self.found


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.asyncio
async def test_the_only_reader_reads_what_it_did_not_take(as_text: bool) -> None:
    log = make()
    await log.create("s", ACME, "sse")
    texts = log.text_sink("s", Around(b"", b""), as_message)
    assert texts is not None
    reader = Follower(log, takes=True)
    await asyncio.sleep(0)
    for number, is_free in enumerate((True, False, True)):
        reader.is_free = is_free
        item = b"%d" % number
        texts.put(Text(item), 0.0) if as_text else log.append("s", [item])
    assert reader.found == [b"0"]
    await asyncio.sleep(0)
    assert reader.found == [b"0", b"1", b"2"], "in their order, and before more comes"
    await log.end("s")
    await reader.end()


STEPS = ["say", "text", "stall", "free", "turn", "come", "leave", "come back"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.booleans())
@pytest.mark.asyncio
async def test_taken_and_read_items_are_all_items_in_order(steps: list[str], takes: bool) -> None:
    """Whoever else comes and leaves meanwhile."""
    log = make()
    await log.create("s", ACME, "sse")
    texts = log.text_sink("s", Around(b"and ", b""), as_message)
    assert texts is not None
    reader, others = Follower(log, takes=True), list[Follower]()
    all_items = list[bytes]()
    for step in steps:
        number = b"%d" % len(all_items)
        if step == "say":
            log.append("s", [number])
            all_items.append(number)
        elif step == "text":
            assert texts.put(Text(number), asyncio.get_running_loop().time())
            all_items.append(b"and " + number)
        elif step == "turn":
            await asyncio.sleep(0)
        elif step == "come":
            others.append(Follower(log, takes=takes))
        elif step == "leave" and others:
            await others.pop().leave()
        elif step == "come back":
            await reader.come_back()
        else:
            reader.is_free = step == "free"
    await log.end("s")
    for each in (reader, *others):
        assert await each.end() == all_items
    assert not log._records["s"].waiting


@pytest.mark.asyncio
async def test_texts_are_kept_by_themselves_and_read_as_items() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    texts = log.text_sink("s", Around(b'{"text":"', b'"}'), as_message)
    assert texts is not None
    said = Text(b"said")
    before = size_of(log, ACME)
    assert texts.put(said, 7.0)
    assert log.appended_at("s") == 7.0
    log.append("s", [b"whole"])
    assert log.appended_at("s") > 7.0
    kept = log.kept("s")
    assert kept is not None
    assert kept.items[0] is said, "not a copy"
    assert await log.read("s", Cursor(0)) == [b'{"text":"said"}', b"whole"]
    # It counts as what is kept; while more may come, in stretches.
    size = 2 * ITEM_OVERHEAD_BYTES + len(b"said" + b"whole")
    assert size <= size_of(log, ACME) - before <= size + MAX_STRETCH_BYTES
    await log.end("s")
    assert size_of(log, ACME) - before == size
    assert texts.put(said, 9.0)
    assert await read_all(log, "s") == [b'{"text":"said"}', b"whole"], "nothing after the end"
    await log.forget("s", ACME)
    assert log.text_sink("s", Around(b"", b""), as_message) is None
    assert log.appended_at("s") == math.inf


@pytest.mark.asyncio
async def test_numbered_items_are_made_anew_of_their_texts() -> None:
    turn, taken = TurnEvents("t"), list[bytes]()

    def take(item: bytes, now: float) -> bool:
        taken.append(item)
        return True

    log = make(max_stream_bytes=STREAM_OVERHEAD_BYTES + 6 * (ITEM_OVERHEAD_BYTES + 10))
    await log.create("s", ACME, "ws")
    texts = log.text_sink("s", turn.text_form(0), as_message)
    assert texts is not None
    reading = asyncio.create_task(log.read("s", Cursor(0, take)))
    await asyncio.sleep(0)
    frames_said = []
    for number in range(6):
        if number == 3:
            (whole,) = turn.delta(Delta(0, "x", reasoning="y"))
            log.append("s", [whole.data])
            frames_said.append(whole.data)
        else:
            assert texts.put(Text(b"%d" % number), 0.0)
            frames_said.append(
                b'{"type":"delta","id":"t","seq":%d,"content":"%d"}' % ((number,) * 2)
            )
    assert taken == frames_said
    kept = log.kept("s")
    assert kept is not None
    assert 0 < kept.num_dropped < 3, "texts take less room than frames"
    assert kept.items == frames_said[kept.num_dropped :]
    assert kept.around is None
    for after in range(kept.num_dropped, 6):
        assert await log.read("s", Cursor(after)) == frames_said[after:]
    await log.end("s")
    await reading
    assert texts.put(Text(b"7"), 0.0), "taken, and let go"
    assert turn.text_form(0).make(Text(b"")) == b'{"type":"delta","id":"t","seq":6,"content":""}'


@pytest.mark.asyncio
async def test_texts_of_another_form_are_not_kept_by_themselves() -> None:
    """As those of a second choice, whose events have its number."""
    log = make()
    await log.create("s", ACME, "sse")
    texts = log.text_sink("s", Around(b"0", b""), as_sse)
    assert texts is not None
    assert log.text_sink("s", Around(b"1", b""), as_sse) is None
    texts.put(Text(b"a"), 0.0)
    assert await log.read("s", Cursor(0)) == [b"data: 0a\n\n"]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.asyncio
async def test_a_reader_that_gave_up_has_what_it_took(as_text: bool) -> None:
    log, taken = make(), list[bytes]()

    def take(item: bytes, now: float) -> bool:
        taken.append(item)
        return True

    await log.create("s", ACME, "sse")
    cursor = Cursor(0, take)
    reading = asyncio.create_task(log.read("s", cursor))
    await asyncio.sleep(0)
    reading.cancel()  # the task has not heard of it when the next item comes
    if as_text:
        texts = log.text_sink("s", Around(b"", b""), as_message)
        assert texts is not None
        texts.put(Text(b"0"), 0.0)
    else:
        log.append("s", [b"0"])
    await asyncio.gather(reading, return_exceptions=True)
    log.append("s", [b"1"])
    assert taken == [b"0"]
    assert cursor.after == 1
    assert await log.read("s", cursor) == [b"1"]


@pytest.mark.asyncio
async def test_who_may_read() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    log.append("s", [b"a"])
    await log.check("s", ACME)
    await log.check("s", ACME, kind="sse", after=1)
    for stream_id, tenant, kind in (("s", OTHER, "sse"), ("s", ACME, "ws"), ("t", ACME, "sse")):
        with pytest.raises(StreamNotFound):
            await log.check(stream_id, tenant, kind=kind)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="only 1 items"):
        await log.check("s", ACME, kind="sse", after=2)


@pytest.mark.asyncio
async def test_each_stream_is_kept_for_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = make(retention_s=10.0), LoopClock(monkeypatch)

    async def end(name: str) -> None:
        await log.create(name, ACME, "sse")
        log.append(name, [b"a"])
        await log.end(name)

    def kept() -> str:
        return "".join(name for name in "abc" if log.kept(name) is not None)

    await end("a")
    await clock.go_on(5.0)
    await end("b")
    await clock.go_on(SWEEP_S / 2)
    await end("c")
    await log.end("b")  # which prolongs nothing
    await clock.go_on(5.0 - SWEEP_S)
    assert kept() == "abc"
    await clock.go_on(SWEEP_S)
    assert kept() == "bc"
    await clock.go_on(5.0 - SWEEP_S / 2 + 0.01)
    assert kept() == "c"
    await clock.go_on(SWEEP_S / 2)
    assert kept() == "c", "those that end shortly after each other go together"
    await clock.go_on(SWEEP_S / 2)
    assert kept() == ""
    assert size_of(log, ACME) == 0
    await end("a")  # after all others were forgotten
    await clock.go_on(10.0 + SWEEP_S)
    assert kept() == ""


@pytest.mark.asyncio
async def test_who_waits_for_what_is_forgotten_hears_of_it() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    waiting = asyncio.create_task(log.read("s", Cursor(0)))
    await asyncio.sleep(0)
    await log.forget("s", ACME)
    with pytest.raises(StreamNotFound):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.asyncio
async def test_a_stream_may_lose_all_it_said_for_another_one() -> None:
    """Its tenant's room is taken by one that runs, too, and has stopped to grow."""
    log = make(max_tenant_bytes=3 * STREAM_OVERHEAD_BYTES, max_stream_bytes=10**6)
    for name in ("large", "small"):
        await log.create(name, ACME, "sse")
    log.append("large", [b"x" * (STREAM_OVERHEAD_BYTES - ITEM_OVERHEAD_BYTES)])
    log.append("small", [b"1"])
    log.append("small", [b"2"])
    small, large = log.kept("small"), log.kept("large")
    assert small is not None
    assert large is not None
    assert (small.num_dropped, list(small.items)) == (2, [])
    assert len(large.items) == 1
    assert size_of(log, ACME) <= log.max_tenant_bytes


@pytest.mark.asyncio
async def test_a_stream_that_runs_unread_makes_no_room() -> None:
    log = make(max_tenant_bytes=2 * STREAM_OVERHEAD_BYTES)
    for name in ("left", "never read"):
        await log.create(name, ACME, "sse")
    log.attach("left")
    log.detach("left")
    with pytest.raises(RateLimited):
        await log.create("new", ACME, "sse")
    await log.check("left", ACME)


@pytest.mark.asyncio
async def test_a_long_stream_loses_its_oldest_items() -> None:
    log = make(max_stream_bytes=STREAM_OVERHEAD_BYTES + 3 * (ITEM_OVERHEAD_BYTES + 10))
    await log.create("s", ACME, "sse")
    items = [b"%010d" % i for i in range(10)]
    slow = asyncio.create_task(read_all(log, "s"))
    await asyncio.sleep(0)
    log.append("s", items)
    with pytest.raises(Gone) as caught:
        await slow
    assert caught.value.code == "stream_position_gone"
    with pytest.raises(Gone, match="after position 7"):
        await log.check("s", ACME, kind="sse", after=6)
    await log.check("s", ACME)  # it is still the tenant's
    assert await log.read("s", Cursor(7)) == items[7:]


@pytest.mark.asyncio
async def test_a_tenants_ended_streams_make_room_first() -> None:
    each = STREAM_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES + 10
    log = make(max_stream_bytes=3 * each, max_tenant_bytes=3 * each)
    for name, tenant in (("old", ACME), ("older", ACME), ("theirs", OTHER), ("runs", ACME)):
        await log.create(name, tenant, "sse")
        log.append(name, [b"x" * 10])
    for name in ("older", "old", "theirs"):
        await log.end(name)
    await log.create("new", ACME, "ws")
    with pytest.raises(StreamNotFound):
        await log.check("older", ACME)
    for name, tenant in (("old", ACME), ("theirs", OTHER), ("runs", ACME)):
        assert await log.read(name, Cursor(0)) == [b"x" * 10], tenant
    log.append("runs", [b"y" * 10] * 2)
    assert log.kept("old") is None
    assert await log.read("runs", Cursor(0)) == [b"x" * 10, b"y" * 10, b"y" * 10]


@pytest.mark.asyncio
async def test_what_is_read_to_its_end_does_not_make_room() -> None:
    """Nor does a stream that has ended shortly before: its readers have yet to hear the last."""
    each = STREAM_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES + 10
    log = make(max_stream_bytes=3 * each, max_tenant_bytes=3 * each)
    for name in ("read", "twice", "runs"):
        await log.create(name, ACME, "sse")
        log.attach(name)
        log.append(name, [b"x" * 10])
    log.attach("twice")
    await log.end("read")
    await log.end("twice")
    with pytest.raises(RateLimited):
        await log.create("new", ACME, "sse")
    log.append("runs", [b"y" * 10])
    assert await log.read("read", Cursor(0)) == await log.read("twice", Cursor(0)) == [b"x" * 10]
    with pytest.raises(Gone):  # the one that grows pays for it
        await log.read("runs", Cursor(0))
    assert await log.read("runs", Cursor(1)) == [b"y" * 10]
    log.detach("twice")
    with pytest.raises(RateLimited):  # it has another reader
        await log.create("new", ACME, "sse")
    log.detach("twice")
    await log.create("new", ACME, "sse")
    with pytest.raises(StreamNotFound):
        await log.check("twice", ACME)
    log.detach("twice")  # nobody knows it any more
    log.attach("twice")
    assert await log.read("read", Cursor(0)) == [b"x" * 10]
    log.detach("read")
    log.attach("read")  # somebody came back
    with pytest.raises(RateLimited):
        await log.create("newer", ACME, "sse")


@pytest.mark.asyncio
async def test_running_streams_are_never_taken_for_a_new_one() -> None:
    log = make(max_tenant_bytes=2 * STREAM_OVERHEAD_BYTES)
    for name in ("a", "b"):
        await log.create(name, ACME, "sse")
    with pytest.raises(RateLimited):
        await log.create("c", ACME, "sse")
    await log.create("c", OTHER, "sse")
    await log.end("a")
    await log.create("d", ACME, "sse")
    with pytest.raises(StreamNotFound):
        await log.check("a", ACME)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["open", "say", "text", "end", "attach", "detach"]),
            st.binary(),
        )
    )
)
def test_the_bound_of_a_tenant_holds_whatever_happens(steps: list[tuple[str, str, bytes]]) -> None:
    async def play() -> None:
        limit = 5 * STREAM_OVERHEAD_BYTES
        log = make(max_stream_bytes=3 * STREAM_OVERHEAD_BYTES, max_tenant_bytes=limit)
        around = Around(b"h" * 300, b"t" * 50)
        opened: dict[str, list[bytes]] = {}
        ended: set[str] = set()
        readers = Counter[str]()
        for name, action, data in steps:
            if action == "open" and name not in opened:
                with contextlib.suppress(RateLimited):
                    await log.create(name, ACME, "sse")
                    opened[name] = []
            elif action == "say" and name in opened and name not in ended:
                items = [data * 50] * 3
                log.append(name, items)
                opened[name] += items
            elif action == "text" and name in opened and name not in ended:
                texts = log.text_sink(name, around, as_message)
                assert texts is not None
                for _ in range(3):
                    texts.put(Text(data), 0.0)
                opened[name] += [around.head + data + around.tail] * 3
            elif action == "end" and name in opened:
                await log.end(name)
                ended.add(name)
            elif action == "attach" and name in opened:
                log.attach(name)
                readers[name] += log.kept(name) is not None
            elif action == "detach" and readers[name]:
                log.detach(name)
                readers[name] -= 1
            kept = [some for some in map(log.kept, opened) if some is not None]
            num_items = sum(len(some.items) for some in kept)
            num_bytes = sum(len(item) for some in kept for item in some.items)
            num_bytes += len(kept) * STREAM_OVERHEAD_BYTES + num_items * ITEM_OVERHEAD_BYTES
            assert num_bytes <= size_of(log, ACME) <= limit
            for read in +readers:
                await log.check(read, ACME)
        for name, said in opened.items():
            await log.end(name)
            for after in range(len(said) + 1):
                try:
                    assert await read_all(log, name, after) == said[after:]
                except (Gone, StreamNotFound):
                    continue

    asyncio.run(play())


@pytest.mark.asyncio
async def test_of_a_tenant_nothing_is_left_with_its_last_stream() -> None:
    log = make()
    for name in ("a", "b"):
        await log.create(name, ACME, "sse")
    await log.forget("a", ACME)
    assert size_of(log, ACME) == STREAM_OVERHEAD_BYTES
    log.append("b", [b"counts"])
    assert size_of(log, ACME) > STREAM_OVERHEAD_BYTES
    await log.forget("b", ACME)
    assert not log._shares
    assert not log._records


@pytest.mark.asyncio
async def test_forgetting_is_for_the_owner_only() -> None:
    log, tenant = make(), uuid4()
    await log.create("a", tenant, "sse")
    log.append("a", [b"1"])
    await log.forget("a", uuid4())
    assert await log.read("a", Cursor(0)) == [b"1"]
    await log.forget("a", tenant)
    await log.forget("a", tenant)
    log.append("a", [b"2"])
    await log.end("a")
    with pytest.raises(StreamNotFound):
        await log.check("a", tenant)
    assert size_of(log, tenant) == 0


@pytest.mark.asyncio
async def test_nothing_is_added_to_what_has_ended() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    made = log.text_sink("s", Made("", lambda text: b"<" + text + b">"), as_message)
    assert made is not None
    assert made.put(Text(b"1"), 0.0)
    await log.end("s")
    size = size_of(log, ACME)
    log.append("s", [b"2"])
    assert made.put(Text(b"3"), 0.0), "taken, and let go"
    assert await read_all(log, "s") == [b"<1>"]
    assert size_of(log, ACME) == size


@pytest.mark.asyncio
async def test_a_text_that_no_item_is_made_of_is_not_taken() -> None:
    log = make()
    await log.create("s", ACME, "sse")
    made = log.text_sink("s", Made("", lambda text: None), as_message)
    assert made is not None
    assert not made.put(Text(b"1"), 0.0)
    await log.end("s")
    assert await read_all(log, "s") == []


@pytest.mark.asyncio
async def test_ending_twice_is_ending_once() -> None:
    log, broken = make(retention_s=0.02), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    await log.create("s", ACME, "sse")
    await log.end("s")
    await log.end("s")
    await log.forget("s", ACME)
    await asyncio.sleep(0.05)
    assert broken == [], "a timer was left behind"
