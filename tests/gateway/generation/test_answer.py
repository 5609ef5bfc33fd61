"""Who sends what when, over the real engine client and an engine double driven by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import FinishReason, RequestOutput, StepOutputs
from gateway.errors import InternalError
from gateway.generation.answer import Delivery
from gateway.generation.delta import Delta
from gateway.generation.events import Text, TextSink
from gateway.generation.generation import Generation
from tests.gateway.engine_double import Play
from tests.gateway.generating import Bench, bench
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


@dataclass
class Sink:
    """In place of a ``Delivery``; remembers in which task it was given what."""

    is_free: bool = True
    is_short: bool = False
    """Takes known text by the shorter way."""
    texts: list[str] = field(default_factory=list)
    """What came so."""
    deltas: list[Delta] = field(default_factory=list)
    tasks: list[asyncio.Task[object] | None] = field(default_factory=list)

    def put(self, delta: Delta) -> None:
        assert self.is_free
        self.deltas.append(delta)
        self.tasks.append(asyncio.current_task())

    def text_sink(self, index: int) -> TextSink | None:
        return ShortWay(self, index) if self.is_short else None

    @property
    def text(self) -> str:
        return "".join(delta.content for delta in self.deltas)


@dataclass
class ShortWay:
    """Tells its sink."""

    sink: Sink
    index: int

    def put(self, text: Text, now: float) -> bool:
        if not self.sink.is_free:
            return False
        assert now <= asyncio.get_running_loop().time()
        said = json.loads(b'"' + text + b'"')
        self.sink.texts.append(said)
        self.sink.put(Delta(self.index, said))
        return True


@dataclass
class Driven:
    """A generation whose engine says what the test says."""

    here: Bench
    generation: Generation
    sink: Sink
    yielded: list[Delta]
    reading: asyncio.Task[None]

    def say(self, text: str, finish_reason: FinishReason | None = None, choice: int = 0) -> None:
        """In one output of the engine."""
        tokenizer = self.here.double.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False) if text else []
        (request_id,) = [name for name in self.here.double.running if name.endswith(f"-{choice}")]
        output = RequestOutput(request_id, ids, finish_reason)
        self.here.double.lives[-1]._on_message(StepOutputs([output]))

    @property
    def text(self) -> str:
        return "".join(delta.content for delta in self.yielded)


@asynccontextmanager
async def driven(
    model_dir: Path, *, flush_interval_s: float = 0.0, is_short: bool = False, **fields: object
) -> AsyncIterator[Driven]:
    async with bench(model_dir, flush_interval_s=flush_interval_s) as here:
        here.double.script = lambda prompt: Play(text="x", queued_s=60)
        generation, yielded = here.begin(**fields), list[Delta]()
        sink = Sink(is_short=is_short)

        async def read() -> None:
            async for delta in generation.deltas(cast(Delivery, sink)):
                yielded.append(delta)

        reading = asyncio.create_task(read())
        await until(lambda: generation._reader is not None and generation._reader._waiter)
        try:
            yield Driven(here, generation, sink, yielded, reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            generation.close()


async def test_what_comes_goes_straight_on(model_dir: Path) -> None:
    async with driven(model_dir) as engine:
        for text in ("one ", "two ", "three "):
            engine.say(text)
            assert engine.sink.text.endswith(text)  # at once: no task has run meanwhile
        engine.say("end", "stop")
        await engine.reading
        assert engine.sink.text == "one two three "
        assert [(delta.content, delta.finish_reason) for delta in engine.yielded] == [
            ("end", "stop")
        ]


async def test_text_that_is_known_goes_the_shorter_way(model_dir: Path) -> None:
    async with driven(model_dir, is_short=True) as engine:
        for text in ("a", "b", "a", "ab", "é", "a"):
            engine.say(text)
        assert engine.sink.text == "abaabéa"
        assert engine.sink.texts == ["a", "ab", "a"]
        engine.sink.is_free = False
        engine.say("b")
        engine.sink.is_free = True
        engine.say("a")  # behind it
        await until(lambda: engine.yielded)
        assert (engine.sink.text, engine.text) == ("abaabéa", "ba")
        engine.say("b", "stop")
        await engine.reading
        assert engine.text == "bab"


async def test_what_is_held_back_is_not_overtaken(model_dir: Path) -> None:
    async with driven(model_dir, is_short=True) as engine:
        for text in ("a", "\N{MAN}", "a", "\N{MAN}", "a"):
            engine.say(text)
        assert engine.sink.text == "a\N{MAN}a\N{MAN}a"
        first, *rest = engine.here.double.tokenizer.encode("é", add_special_tokens=False)
        (request_id,) = engine.here.double.running
        for token_ids in ([first], [*rest], engine.here.double.tokenizer.encode("a")):
            engine.here.double.lives[-1]._on_message(
                StepOutputs([RequestOutput(request_id, token_ids)])
            )
        assert engine.sink.text == "a\N{MAN}a\N{MAN}aéa"


async def test_a_sink_that_is_not_free_keeps_what_comes_for_the_reader(model_dir: Path) -> None:
    async with driven(model_dir) as engine:
        engine.say("a")
        engine.sink.is_free = False
        engine.say("b")
        engine.sink.is_free = True
        engine.say("c")  # behind b, which is not read yet
        assert engine.sink.text == "a"
        await until(lambda: engine.yielded)
        assert engine.text == "bc"
        engine.say("d")
        assert engine.sink.text == "ad"


async def test_what_comes_too_soon_is_merged(model_dir: Path) -> None:
    async with driven(model_dir, flush_interval_s=0.05) as engine:
        engine.say("a")
        assert engine.sink.text == "a"
        for text in "bcd":
            engine.say(text)
            await asyncio.sleep(0)
        assert engine.sink.text == "a"
        await until(lambda: len(engine.sink.deltas) > 1)
        assert engine.sink.text == "abcd"
        assert engine.sink.tasks == [asyncio.current_task(), None], "no task woke for it"
        await asyncio.sleep(0.06)
        engine.say("e")
        assert engine.sink.text == "abcde"
        assert not engine.yielded


async def test_who_sends_next(model_dir: Path) -> None:
    """As ``docs/architecture.md`` draws it."""
    async with driven(model_dir, flush_interval_s=0.05) as engine:
        assert engine.generation._reader is not None
        (reading,) = engine.generation._reader._readings
        senders = [reading.sender]
        engine.say("a")
        senders.append(reading.sender)
        engine.say("b")  # too soon
        senders.append(reading.sender)
        await until(lambda: engine.sink.text == "ab")
        senders.append(reading.sender)
        await asyncio.sleep(0.06)
        engine.sink.is_free = False
        engine.say("c")  # the task must go on
        await until(lambda: engine.text == "c")
        senders.append(reading.sender)
        engine.say("d")  # too soon again, now after a piece of the task's
        senders.append(reading.sender)
        engine.say("e", "stop")
        await engine.reading
        senders.append(reading.sender)
        assert [sender.name for sender in senders] == [
            "CALLBACK", "CALLBACK", "TIMER", "CALLBACK", "CALLBACK", "TIMER", "NOBODY",
        ]  # fmt: skip


async def test_while_the_task_sends_nobody_overtakes_it(model_dir: Path) -> None:
    async with driven(model_dir) as engine:
        engine.reading.cancel()
        await asyncio.gather(engine.reading, return_exceptions=True)
        engine.sink.is_free = False
        deltas = engine.generation.deltas(cast(Delivery, engine.sink))
        reading = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0)
        engine.say("a")
        assert (await reading).content == "a"
        engine.sink.is_free = True
        engine.say("b")  # while "a" is being sent
        assert not engine.sink.deltas
        assert (await anext(deltas)).content == "b"
        await deltas.aclose()


async def test_what_waits_goes_to_the_reader_where_the_sink_cannot_take_it(model_dir: Path) -> None:
    async with driven(model_dir, flush_interval_s=0.05) as engine:
        engine.say("a")
        engine.say("b")
        engine.sink.is_free = False
        await until(lambda: engine.yielded)
        assert (engine.sink.text, engine.text) == ("a", "b")
        engine.sink.is_free = True
        engine.say("c")
        engine.say("d", "stop")  # what waits leaves with the end
        await engine.reading
        assert (engine.sink.text, engine.text) == ("a", "bcd")


async def test_a_stream_given_up_while_something_waits_leaves_no_timer(model_dir: Path) -> None:
    async with driven(model_dir, flush_interval_s=0.05) as engine:
        engine.say("a")
        engine.say("b")
        engine.reading.cancel()
        await asyncio.gather(engine.reading, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert engine.sink.text == "a"


async def test_a_stop_string_ends_it_though_the_engine_goes_on(model_dir: Path) -> None:
    async with driven(model_dir, stop=("STOP",)) as engine:
        engine.say("one ")
        engine.say("two ST")
        engine.say("OP three")
        await engine.reading
        assert engine.sink.text == "one two "
        assert [(delta.content, delta.finish_reason) for delta in engine.yielded] == [("", "stop")]
        await until(lambda: not engine.here.double.running)


async def test_several_choices_go_straight_on_each_at_its_own_pace(model_dir: Path) -> None:
    async with driven(model_dir, flush_interval_s=0.05, num_choices=2) as engine:
        engine.say("a", choice=0)
        engine.say("b", choice=0)  # too soon
        engine.say("x", choice=1)  # not held up by that
        assert [(delta.index, delta.content) for delta in engine.sink.deltas] == [
            (0, "a"),
            (1, "x"),
        ]
        engine.say("y", "stop", choice=1)  # the last waits for nothing
        await until(lambda: engine.yielded)
        assert [(d.index, d.content, d.finish_reason) for d in engine.yielded] == [(1, "y", "stop")]
        await until(lambda: len(engine.sink.deltas) == 3)
        assert (engine.sink.deltas[2].index, engine.sink.deltas[2].content) == (0, "b")
        engine.say("", "length", choice=0)
        await engine.reading
        assert [delta.finish_reason for delta in engine.yielded] == ["stop", "length"]


async def test_a_choice_that_a_stop_string_ended_says_no_more(model_dir: Path) -> None:
    async with driven(model_dir, num_choices=2, stop=("STOP",)) as engine:
        engine.say("one STOP", choice=0)
        engine.say(" more", choice=0)  # said before the engine hears of it
        await until(lambda: engine.yielded)
        engine.say("two", "length", choice=1)
        await engine.reading
        assert not engine.sink.deltas
        assert [(d.index, d.content, d.finish_reason) for d in engine.yielded] == [
            (0, "one ", "stop"),
            (1, "two", "length"),
        ]


async def test_half_a_character_is_not_passed_on(model_dir: Path) -> None:
    async with driven(model_dir) as engine:
        ids = engine.here.double.tokenizer.encode("é", add_special_tokens=False)
        (request_id,) = engine.here.double.running
        for token_id in ids:
            output = RequestOutput(request_id, [token_id])
            engine.here.double.lives[-1]._on_message(StepOutputs([output]))
        assert [delta.content for delta in engine.sink.deltas] == ["é"]


@pytest.mark.parametrize("is_short", [False, True])
async def test_a_sink_that_fails_fails_its_own_stream_only(model_dir: Path, is_short: bool) -> None:
    async with driven(model_dir, is_short=is_short) as engine:

        def put(delta: Delta) -> None:
            raise ZeroDivisionError

        if is_short:
            engine.say("a")  # from here on it is known
        engine.sink.put = put  # type: ignore[method-assign]
        engine.say("a")  # raises nothing here, where other streams' outputs come from as well
        with pytest.raises(InternalError):
            await engine.reading


async def test_tokens_are_counted_though_nobody_is_woken(model_dir: Path) -> None:
    async with driven(model_dir) as engine:
        engine.say("abc")
        assert engine.generation.num_generated_tokens == 3
        assert engine.generation.admitted.hold.generated == 3


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.sampled_from(["say", "say", "say", "stall", "free", "turn"]), min_size=1, max_size=25
    ),
    interval_s=st.sampled_from([0.0, 0.002]),
    is_short=st.booleans(),
)
async def test_whatever_the_pace_the_text_is_whole_and_in_order(
    model_dir: Path, steps: Sequence[str], interval_s: float, is_short: bool
) -> None:
    async with driven(model_dir, flush_interval_s=interval_s, is_short=is_short) as engine:
        shown: list[str] = []

        def show(delta: Delta) -> None:
            shown.append(delta.content)

        engine.sink.put = show  # type: ignore[method-assign]
        engine.reading.cancel()
        await asyncio.gather(engine.reading, return_exceptions=True)

        async def read() -> None:
            async for delta in engine.generation.deltas(cast(Delivery, engine.sink)):
                show(delta)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        said = ""
        for index, step in enumerate(steps):
            if step == "say":
                said += f"{index} é"
                engine.say(f"{index} é")
            elif step == "turn":
                await asyncio.sleep(0.001)
            else:
                engine.sink.is_free = step == "free"
        engine.say("!", "stop")
        await reading
        assert "".join(shown) == said + "!"
