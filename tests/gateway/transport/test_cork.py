"""What is written in one callback leaves together, in its order, and before anything else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engine.messages import RequestOutput, StepOutputs
from gateway.transport.cork import Cork
from gateway.transport.protocol import BodyWriter
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import Gateway, until
from tests.gateway.ws_client import ready, text_of


def test_it_is_held_until_the_end_of_the_block() -> None:
    written: list[bytes] = []
    cork = Cork()
    assert cork.held is None
    for _ in range(2):
        with cork:
            assert cork.held is not None
            cork.held += [(written.append, b"a"), (written.append, b"b")]
            assert not written
        assert cork.held is None
        assert written == [b"a", b"b"]
        written.clear()


def test_released_it_holds_what_comes_after() -> None:
    written: list[bytes] = []
    cork = Cork()
    cork.release()
    with cork:
        assert cork.held is not None
        cork.held.append((written.append, b"a"))
        cork.release()
        assert written == [b"a"]
        cork.held.append((written.append, b"b"))
        assert written == [b"a"]
    assert written == [b"a", b"b"]


def test_a_block_that_fails_holds_nothing_back() -> None:
    written: list[bytes] = []
    cork = Cork()

    def fail() -> None:
        with cork:
            assert cork.held is not None
            cork.held.append((written.append, b"a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert written == [b"a"]
    assert cork.held is None


def test_a_closed_transport_keeps_none_of_the_others_waiting() -> None:
    written: list[bytes] = []

    def closed(data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    with (cork := Cork()):
        assert cork.held is not None
        cork.held += [(closed, b"a"), (written.append, b"b")] * 2
    assert written == [b"b", b"b"]


def test_what_a_writer_leaves_to_others_passes_nothing_that_is_held() -> None:
    written: list[bytes] = []
    cork = Cork()
    cycle: Any = SimpleNamespace(
        transport=SimpleNamespace(write=written.append),
        chunked_encoding=True,
        flow=SimpleNamespace(write_paused=False),
        response_complete=False,
        disconnected=False,
    )
    owner: Any = SimpleNamespace(cork=cork, writer=None)
    writer = BodyWriter(owner, cycle)
    with cork:
        assert writer.write(b"one")
        assert not written
        writer.close()
        cycle.flow.write_paused = True
        assert not writer.write(b"two")  # whoever is asked now writes past the cork
        assert written == [b"3\r\none\r\n"]
    assert writer.write(b"") is False
    cycle.flow.write_paused = False
    assert writer.write(b"three")
    assert written[1:] == [b"5\r\nthree\r\n"]


@pytest.mark.asyncio
async def test_a_step_for_several_turns_of_one_socket(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="ab", interval_s=60.0)
    turns = ["one", "two", "three"]
    async with ready(gateway) as client:
        for turn in turns:
            await client.chat(turn, turn)
        await until(lambda: len(double.generated) == len(turns))  # the first token of each
        await asyncio.sleep(0.05)  # and more may follow at once
        life = double.lives[-1]
        ids = [request.request_id for request in double.requests]
        tokens = [double.tokenizer.encode(letter)[0] for letter in "xyz"]
        life._on_message(StepOutputs([RequestOutput(one, tokens[:1]) for one in ids * 40]))
        last = [RequestOutput(one, tokens[1:], finish_reason="stop") for one in ids]
        life._on_message(StepOutputs(last))
        said = dict.fromkeys(turns, "")
        num_done = 0
        while num_done < len(turns):
            frame = await client.receive()  # which looks at the numbers of each turn's frames
            said[frame["id"]] += text_of([frame])
            num_done += frame["type"] == "done"
    assert set(said.values()) == {"a" + 40 * "x" + "yz"}
