from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.grants import Grants
from gateway.generation.meter import Meter
from tenants.quota import Hold, Quota
from tests.memory_store.store import MemoryStore
from tests.tenants.reserving import put
from tests.tenants.samples import make_key


@dataclass
class Stream:
    """An answer that does with its grants what the engine does."""

    wants: int
    granted: int
    max_tokens: int
    num_generated_tokens: int = 0
    finish_reason: str | None = None
    has_last: bool = False

    def grant(self, num_tokens: int, *, is_last: bool = False) -> None:
        assert num_tokens >= self.granted, "a grant never shrinks"
        assert not self.has_last, "there is none after the last"
        assert num_tokens <= self.max_tokens, "others could use what it may not"
        self.granted, self.has_last = num_tokens, is_last
        self.end_if_done()

    def generate(self, num_tokens: int) -> None:
        room = min(self.granted, self.wants) - self.num_generated_tokens
        self.num_generated_tokens += min(num_tokens, room)
        self.end_if_done()

    def end_if_done(self) -> None:
        if self.num_generated_tokens == self.wants:
            self.finish_reason = "stop"
        elif self.has_last and self.num_generated_tokens == self.granted:
            self.finish_reason = "length"


@dataclass
class Table:
    """A request with its answers, over a real hold; nothing may ever be beyond it."""

    hold: Hold
    grants: Grants | None
    streams: list[Stream] = field(default_factory=list)
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(None, self.grants, lambda _: (0, False))

    @property
    def generated(self) -> int:
        return sum(stream.num_generated_tokens for stream in self.streams)

    def check(self) -> None:
        might = sum(
            stream.granted if stream.finish_reason is None else stream.num_generated_tokens
            for stream in self.streams
        )
        assert self.generated <= might <= self.hold.allowed

    def generate(self, index: int, num_tokens: int) -> None:
        stream = self.streams[index % len(self.streams)]
        if stream.finish_reason is None:
            before = stream.num_generated_tokens
            stream.generate(num_tokens)
            self.meter.count(stream.num_generated_tokens - before)
        self.check()

    async def answered(self) -> None:
        while self.hold._extending is not None:  # noqa: ASYNC110 - the store answers
            await asyncio.sleep(0)
        self.check()


async def table(
    wants: list[int], max_tokens: int, *, slice_tokens: int = 100, **limits: Any
) -> Table:
    store = MemoryStore()
    _, who = await make_key(store)
    if limits:
        await put(store, who, "tenant", **limits)
    record = await store.find_key(who.key.public_id)
    assert record is not None
    hold = await Quota(store, slice_tokens=slice_tokens).reserve(
        record.principal,
        request_id=uuid4(),
        model="demo",
        prompt_tokens=10,
        max_tokens=max_tokens * len(wants),
    )
    grants = Grants.of(hold, len(wants), max_tokens)
    here = Table(hold, grants)
    for index, number in enumerate(wants):
        first = max_tokens if grants is None else grants.first(index)
        here.streams.append(Stream(min(number, max_tokens), first, max_tokens))
    if grants is not None:
        begun = sum(stream.granted for stream in here.streams)
        assert begun == hold.allowed, "they begin with all that is reserved"
        grants.begin(here.streams)  # type: ignore[arg-type]
    here.check()
    return here


@given(
    wants=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    max_tokens=st.integers(1, 400),
    budget=st.integers(1, 1500),
    slice_tokens=st.integers(2, 120),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30), st.booleans()), max_size=60),
)
def test_nothing_is_generated_that_is_not_reserved(
    wants: list[int],
    max_tokens: int,
    budget: int,
    slice_tokens: int,
    moves: list[tuple[int, int, bool]],
) -> None:
    """In any order of tokens and answers; and everybody comes to an end."""

    async def run() -> None:
        here = await table(wants, max_tokens, slice_tokens=slice_tokens, monthly_tokens=10 + budget)
        for index, num_tokens, has_answer in moves:
            here.generate(index, num_tokens)
            if has_answer:
                await here.answered()
        for _ in range(3000):
            if all(stream.finish_reason is not None for stream in here.streams):
                break
            for index in range(len(wants)):
                here.generate(index, 7)
            await here.answered()
        ends = [stream.finish_reason for stream in here.streams]
        assert None not in ends
        assert here.generated <= budget
        if sum(min(number, max_tokens) for number in wants) <= budget and len(wants) == 1:
            assert ends == ["stop"], "nothing is cut that there is a budget for"
        await here.hold.close()

    asyncio.run(run())


@pytest.mark.asyncio
async def test_what_is_reserved_as_a_whole_needs_no_grants() -> None:
    assert (await table([50], 1000)).grants is None
    assert (await table([50], 100, monthly_tokens=5000)).grants is None
    assert (await table([50], 101, monthly_tokens=5000)).grants is not None


@pytest.mark.asyncio
async def test_a_single_answer_asks_ahead_of_its_generation() -> None:
    here = await table([900], 1000, monthly_tokens=5000)
    (stream,) = here.streams
    while stream.finish_reason is None:
        here.generate(0, 1)
        await here.answered()
        assert stream.granted - stream.num_generated_tokens >= 49
    assert here.hold.allowed == 1000


@pytest.mark.asyncio
async def test_while_the_store_is_asked_tokens_are_only_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = await table([900], 1000, monthly_tokens=5000)
    num_advances, advance = 0, Grants.advance

    def counted(grants: Grants) -> None:
        nonlocal num_advances
        num_advances += 1
        advance(grants)

    monkeypatch.setattr(Grants, "advance", counted)
    here.generate(0, 51)
    assert here.hold.is_asking
    for _ in range(30):
        here.generate(0, 1)
    assert num_advances == 1
    await here.answered()
    assert not here.hold.is_asking
    (stream,) = here.streams
    assert (num_advances, stream.granted) == (2, 200)
    for _ in range(100):
        here.generate(0, 1)
    assert here.hold.is_asking, "the next slice is asked for in its turn"
    assert num_advances == 3
    await here.answered()
    await here.hold.close()


@pytest.mark.asyncio
async def test_the_store_is_told_how_long_the_answers_can_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[float] = []
    ask = Hold.ask

    def noted(hold: Hold, tokens: int, *, patience_s: float = 0.0) -> None:
        told.append(patience_s)
        ask(hold, tokens)

    monkeypatch.setattr(Hold, "ask", noted)
    here = await table([900], 1000, monthly_tokens=5000, slice_tokens=200)
    here.generate(0, 1)
    now += 4.0
    here.generate(0, 99)
    assert told == []
    here.generate(0, 20)
    assert told == [pytest.approx(4.0 * 80 / 120)], "120 in 4 s, and 80 are left"
    await here.answered()
    await here.hold.close()
    # One that has said nothing may begin at any time, and at any pace.
    here = await table([900, 900], 1000, monthly_tokens=5000, slice_tokens=200)
    here.generate(0, 1)
    assert told[1:] == [0.0]
    await here.answered()
    await here.hold.close()


@pytest.mark.asyncio
async def test_where_the_budget_ends_the_engine_is_told_at_once() -> None:
    here = await table([900], 1000, monthly_tokens=70)
    (stream,) = here.streams
    assert (stream.granted, stream.has_last) == (60, True)


@pytest.mark.asyncio
async def test_several_answers_share_a_slice_and_what_one_leaves() -> None:
    here = await table([5, 900, 900], 1000, monthly_tokens=5000)
    assert [stream.granted for stream in here.streams] == [34, 33, 33]
    here.generate(0, 5)
    await here.answered()
    assert here.streams[0].finish_reason == "stop"
    here.generate(1, 1)
    await here.answered()
    assert here.hold.allowed == 100 + 300
    assert sum(stream.granted for stream in here.streams[1:]) == 395


@pytest.mark.asyncio
async def test_more_answers_than_tokens() -> None:
    here = await table([9, 9, 9], 1000, monthly_tokens=12)
    assert [stream.granted for stream in here.streams] == [1, 1, 0]
    assert here.streams[2].finish_reason == "length"
    for index in range(3):
        here.generate(index, 9)
    assert here.generated == 2
