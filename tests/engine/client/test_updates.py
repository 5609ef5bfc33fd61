from __future__ import annotations

import pytest

from engine.client.updates import RequestUpdates
from engine.errors import EngineDead, QueueFull
from engine.messages import (
    AbortRequest,
    ClientMessage,
    Grant,
    GrantTokens,
    ParkRequest,
    UnparkRequest,
)


class Engine:
    """Takes messages, unless ``error`` is set; then only the first ``num_taken``."""

    def __init__(self) -> None:
        self.messages: list[ClientMessage] = []
        self.error: Exception | None = None
        self.num_taken = 0

    def send(self, message: ClientMessage) -> None:
        if self.error is not None and len(self.messages) >= self.num_taken:
            raise self.error
        self.messages.append(message)


def test_an_engine_that_reads_gets_each_at_once() -> None:
    engine = Engine()
    updates = RequestUpdates(engine.send)
    updates.park("a")
    updates.unpark("a")
    updates.grant(Grant("b", 5))
    updates.abort("c")
    assert engine.messages == [
        ParkRequest(["a"]),
        UnparkRequest(["a"]),
        GrantTokens([Grant("b", 5)]),
        AbortRequest(["c"]),
    ]
    assert len(updates) == 0
    updates.flush()
    assert len(engine.messages) == 4


@pytest.mark.parametrize("error", [QueueFull("full"), EngineDead("dead")])
def test_what_is_not_taken_waits_and_only_the_latest_is_sent(error: Exception) -> None:
    engine = Engine()
    engine.error = error
    updates = RequestUpdates(engine.send)
    updates.park("a")
    updates.park("b")
    updates.unpark("a")
    updates.grant(Grant("b", 5))
    updates.grant(Grant("b", 8, is_last=True))
    updates.abort("c")
    updates.flush()
    assert engine.messages == []
    assert len(updates) == 4
    engine.error = None
    updates.flush()
    assert engine.messages == [
        AbortRequest(["c"]),
        ParkRequest(["b"]),
        UnparkRequest(["a"]),
        GrantTokens([Grant("b", 8, is_last=True)]),
    ]
    assert len(updates) == 0


def test_parks_of_which_half_were_taken_are_sent_again() -> None:
    engine = Engine()
    engine.error = QueueFull("full")
    updates = RequestUpdates(engine.send)
    updates.park("a")
    updates.unpark("b")
    engine.num_taken = 1
    updates.flush()
    assert engine.messages == [ParkRequest(["a"])]
    assert len(updates) == 2
    engine.error = None
    updates.flush()
    assert engine.messages[1:] == [ParkRequest(["a"]), UnparkRequest(["b"])]


def test_of_a_request_that_has_ended_only_its_abort_is_left() -> None:
    engine = Engine()
    engine.error = QueueFull("full")
    updates = RequestUpdates(engine.send)
    updates.park("a")
    updates.grant(Grant("a", 5))
    updates.abort("a")
    updates.forget("a")
    updates.forget("unknown")
    engine.error = None
    updates.flush()
    assert engine.messages == [AbortRequest(["a"])]


def test_nothing_is_left_for_the_next_engine() -> None:
    engine = Engine()
    engine.error = EngineDead("dead")
    updates = RequestUpdates(engine.send)
    updates.park("a")
    updates.grant(Grant("b", 5))
    updates.abort("c")
    updates.clear()
    engine.error = None
    updates.flush()
    assert engine.messages == []
