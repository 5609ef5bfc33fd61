from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from engine import sockets
from engine.messages import (
    Attach,
    ClientMessage,
    EngineMessage,
    Failed,
    Ping,
    Probe,
    RequestOutput,
    Stats,
    StepOutputs,
    decode_engine_message,
    encode,
)
from engine.sockets import OWNER, Clients, listen

ADDRESS = "inproc://shared"


class Bench:
    """Both ends of the sockets, in one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self.owner = context.socket(zmq.PAIR)
        self.owner.bind("inproc://owner")
        theirs = context.socket(zmq.PAIR)
        theirs.connect("inproc://owner")
        self.clients = Clients(theirs, listen(context, ADDRESS))
        self._sockets = [self.owner, theirs]

    def attach(self, name: bytes) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.identity = name
        socket.linger = 0
        socket.rcvtimeo = 30_000
        socket.connect(ADDRESS)
        self._sockets.append(socket)
        return socket

    def take(self, num_messages: int = 1) -> list[tuple[bytes, ClientMessage]]:
        taken: list[tuple[bytes, ClientMessage]] = []
        while len(taken) < num_messages:
            taken += self.clients.received(wait=True)
        return taken

    def introduce(self, socket: zmq.Socket[bytes]) -> None:
        """A router knows whom it has heard of."""
        socket.send(encode(Attach()))
        self.take()

    def close(self) -> None:
        self.clients.close()
        for socket in self._sockets:
            socket.close(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with zmq.Context() as context:
        bench = Bench(context)
        yield bench
        bench.close()


def heard(socket: zmq.Socket[bytes]) -> EngineMessage:
    return decode_engine_message(socket.recv())


def outputs_of(socket: zmq.Socket[bytes]) -> list[RequestOutput]:
    message = heard(socket)
    assert isinstance(message, StepOutputs)
    return message.outputs


def output(request_id: str, token: int, *, last: bool = False) -> RequestOutput:
    return RequestOutput(request_id, [token], "length" if last else None)


def test_messages_come_with_their_sender(bench: Bench) -> None:
    one, two = bench.attach(b"one"), bench.attach(b"two")
    one.send(encode(Attach()))
    two.send(encode(Ping()))
    bench.owner.send(encode(Ping()))
    assert sorted(bench.take(3), key=lambda pair: pair[0]) == [
        (OWNER, Ping()),
        (b"one", Attach()),
        (b"two", Ping()),
    ]


def test_without_waiting_nothing_is_nothing(bench: Bench) -> None:
    assert list(bench.clients.received(wait=False)) == []


def test_an_answer_goes_to_who_asked(bench: Bench) -> None:
    one = bench.attach(b"one")
    bench.introduce(one)
    bench.clients.send(b"one", Stats(num_running=7))
    bench.clients.send(OWNER, Stats(num_running=8))
    assert heard(one) == Stats(num_running=7)
    assert heard(bench.owner) == Stats(num_running=8)


def test_outputs_are_sorted_by_who_sent_the_request(bench: Bench) -> None:
    sockets = {name: bench.attach(name) for name in (b"one", b"two")}
    for name, socket in sockets.items():
        bench.introduce(socket)
        bench.clients.expects(name, f"of {name.decode()}")
    bench.clients.expects(OWNER, "of the owner")
    step = [output("of one", 1), output("of two", 2), output("of the owner", 3)]
    assert bench.clients.deliver(step) == []
    assert outputs_of(sockets[b"one"]) == step[:1]
    assert outputs_of(sockets[b"two"]) == step[1:2]
    assert outputs_of(bench.owner) == step[2:]


def test_a_request_is_forgotten_with_its_last_output(bench: Bench) -> None:
    one = bench.attach(b"one")
    bench.introduce(one)
    bench.clients.expects(b"one", "r")
    bench.clients.deliver([output("r", 1, last=True)])
    assert outputs_of(one) == [output("r", 1, last=True)]
    bench.clients.deliver([output("r", 2)])  # another one of that name: the owner's
    assert outputs_of(bench.owner) == [output("r", 2)]


def test_a_client_that_went_away_leaves_its_requests_once(bench: Bench) -> None:
    one, two = bench.attach(b"one"), bench.attach(b"two")
    for name, socket in ((b"one", one), (b"two", two)):
        bench.introduce(socket)
        bench.clients.expects(name, f"{name.decode()} a")
        bench.clients.expects(name, f"{name.decode()} b")
    one.close()
    orphans: list[str] = []
    while not orphans:  # ZeroMQ's own thread sees the end of a connection, when it comes to it
        list(bench.clients.received(wait=False))
        orphans = bench.clients.deliver([output("one a", 1)])
    assert sorted(orphans) == ["one a", "one b"]
    assert bench.clients.deliver([output("two a", 2)]) == []
    assert outputs_of(two) == [output("two a", 2)]
    # Aborted for it, they end; nobody hears of that, and they are not handed over again.
    ends = [RequestOutput("one a", [], "abort"), RequestOutput("one b", [], "abort")]
    assert bench.clients.deliver([*ends, output("two b", 3)]) == []
    assert outputs_of(two) == [output("two b", 3)]


def test_probing_finds_a_client_that_is_told_nothing(bench: Bench) -> None:
    one, two = bench.attach(b"one"), bench.attach(b"two")
    for name, socket in ((b"one", one), (b"two", two)):
        bench.introduce(socket)
        bench.clients.expects(name, name.decode())
    one.close()
    orphans: list[str] = []
    while not orphans:
        list(bench.clients.received(wait=False))
        orphans = bench.clients.probe()
    assert orphans == ["one"]
    assert bench.clients.probe() == []
    assert heard(two) == Probe()
    assert not bench.owner.poll(0)


def test_a_client_that_does_not_read_stops_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "ATTACHED_HIGH_WATER_MARK", 5)
    with zmq.Context() as context:
        small = Bench(context)
        slow, quick = small.attach(b"slow"), small.attach(b"quick")
        for name, socket in ((b"slow", slow), (b"quick", quick)):
            small.introduce(socket)
            small.clients.expects(name, name.decode())
        orphans: list[str] = []
        num_steps = 0
        while not orphans:
            num_steps += 1
            assert num_steps < 10_000
            orphans = small.clients.deliver([output("slow", 1), output("quick", 2)])
            assert outputs_of(quick) == [output("quick", 2)]
        assert orphans == ["slow"]
        # It learns of it when it speaks up.
        for _ in range(num_steps - 1):
            heard(slow)
        slow.send(encode(Ping()))
        while not slow.poll(10):
            assert list(small.clients.received(wait=False)) == []
        assert isinstance(heard(slow), Failed)
        small.close()
