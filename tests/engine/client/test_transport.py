from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import psutil
import pytest
import uvloop
import zmq

from engine.client import transport
from engine.client.transport import EngineProcess, EngineSocket
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, QueueFull
from engine.messages import (
    AdapterAnswer,
    AdapterRef,
    EngineMessage,
    LoadAdapter,
    LoadProgress,
    Ping,
    Ready,
    Stats,
    encode,
)
from tests.engine.stand_in import StandInProcess

CONFIG = EngineConfig(model="ok")


class Owner:
    """What an ``EngineClient`` is to its transport."""

    def __init__(self) -> None:
        self.messages: list[EngineMessage] = []
        self.changed = asyncio.Event()
        self.exit: str | None = None
        self.was_killed: bool | None = None
        self.exited = asyncio.Event()

    def on_message(self, message: EngineMessage) -> None:
        self.messages.append(message)
        self.changed.set()

    def on_exit(self, reason: str, *, was_killed: bool | None = None) -> None:
        self.exit, self.was_killed = reason, was_killed
        self.exited.set()

    async def message(self, kind: type) -> EngineMessage:
        async with asyncio.timeout(5):
            while True:
                for message in self.messages:
                    if isinstance(message, kind):
                        return message
                self.changed.clear()
                await self.changed.wait()

    async def words(self, count: int) -> list[str]:
        """What ``count`` messages of progress say, once there are as many."""
        async with asyncio.timeout(5):
            while len(self.messages) < count:
                self.changed.clear()
                await self.changed.wait()
        return [one.message for one in self.messages if isinstance(one, LoadProgress)]


@pytest.mark.asyncio
async def test_the_socket_is_private_and_loses_its_name_once_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        owner = Owner()
        engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
        (folder,) = os.listdir(parent)
        assert stat.S_IMODE(os.stat(os.path.join(parent, folder)).st_mode) == 0o700
        await owner.message(Ready)
        assert os.listdir(parent) == []
        engine.send(Ping())
        await owner.message(Stats)
        await engine.stop(5)
        assert owner.exit is None  # it was asked to


@pytest.mark.asyncio
async def test_a_long_tmpdir_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="x" * 80) as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        owner = Owner()
        engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
        await owner.message(Ready)
        await engine.stop(5)
        assert os.listdir(parent) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
async def test_the_engines_threads_sleep_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    owner = Owner()
    engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
    await owner.message(Ready)
    assert psutil.Process(engine.pid).environ()["OMP_WAIT_POLICY"] == (chosen or "PASSIVE")
    await engine.stop(5)


def test_no_folder_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_SOCKET_PATH", 5)
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        with pytest.raises(ConfigError, match="TMPDIR is too long"):
            transport.private_socket_path("engine")
        assert os.listdir(parent) == []


@pytest.mark.asyncio
async def test_an_engine_that_does_not_read_fills_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's buffer and both queues are finite."""
    monkeypatch.setattr(transport, "SEND_HIGH_WATER_MARK", 10)
    owner = Owner()
    engine = StandInProcess(
        msgspec.structs.replace(CONFIG, model="endless"), owner.on_message, owner.on_exit
    )
    await owner.message(LoadProgress)
    num_sent = 0

    def fill_up() -> None:
        nonlocal num_sent
        while num_sent < 100_000:
            engine.send(Ping())
            num_sent += 1

    with pytest.raises(QueueFull, match="try again later"):
        fill_up()
    assert num_sent >= 10
    await engine.stop(0.1)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_an_engine_reads_late_arrives_in_order(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        owner = Owner()
        engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
        await owner.message(Ready)
        os.kill(engine.pid, signal.SIGSTOP)
        for number in range(3000):
            engine.send(LoadAdapter(number, AdapterRef(name=str(number), path="good")))
        os.kill(engine.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            while sum(isinstance(message, AdapterAnswer) for message in owner.messages) < 3000:
                owner.changed.clear()
                await owner.changed.wait()
        answers = [m.call_id for m in owner.messages if isinstance(m, AdapterAnswer)]
        assert answers == list(range(3000))
        await engine.stop(5)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@pytest.mark.asyncio
async def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        owner = Owner()
        with pytest.raises(EngineDead, match=r"cannot be started: .*nonexistent"):
            EngineProcess(CONFIG, owner.on_message, owner.on_exit)
        assert os.listdir(parent) == []


@pytest.mark.asyncio
async def test_stop_is_idempotent_and_survives_a_dead_engine() -> None:
    owner = Owner()
    engine = StandInProcess(
        msgspec.structs.replace(CONFIG, model="crash"), owner.on_message, owner.on_exit
    )
    async with asyncio.timeout(5):
        await owner.exited.wait()
    assert "exited with code 9" in str(owner.exit)
    assert owner.was_killed is False
    await engine.stop(5)
    await engine.stop(0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("before", "after", "is_known"),
    [
        ("nr_dirty 7\noom_kill 3", "nr_dirty 9\noom_kill 3", True),
        ("oom_kill 3", "oom_kill 4", False),
        ("nr_dirty 7", "nr_dirty 7", False),
    ],
)
async def test_a_kill_is_told_from_one_for_memory(
    before: str, after: str, is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "VMSTAT", tmp_path / "vmstat")
    transport.VMSTAT.write_text(before)
    owner = Owner()
    engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
    await owner.message(Ready)
    transport.VMSTAT.write_text(after)
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await owner.exited.wait()
    assert owner.was_killed is is_known
    await engine.stop(0)


def test_an_unnamed_signal_is_reported_too() -> None:
    assert transport._death(-37).endswith("killed by signal 37")
    assert transport._death(-11).endswith("killed by SIGSEGV")


@pytest.mark.asyncio
async def test_a_stop_that_was_cancelled_can_be_followed_by_another() -> None:
    owner = Owner()
    engine = StandInProcess(CONFIG, owner.on_message, owner.on_exit)
    await owner.message(Ready)
    stopping = asyncio.create_task(engine.stop(0))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await engine.stop(5)
    assert not psutil.pid_exists(engine.pid)


@contextlib.asynccontextmanager
async def connected(owner: Owner) -> AsyncIterator[tuple[EngineSocket, zmq.Socket[bytes]]]:
    """A socket that the event loop reads, and the engine's end of it. One message has arrived."""
    near = EngineSocket(zmq.PAIR, owner.on_message, owner.on_exit)
    port = near._socket.bind_to_random_port("tcp://127.0.0.1")
    descriptor = near._socket.FD
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, near.drain)
    with zmq.Context() as context, context.socket(zmq.PAIR) as far:
        far.connect(f"tcp://127.0.0.1:{port}")
        far.send(encode(LoadProgress("hello", 0.0)))
        near._socket.poll(5000)
        yield near, far
        loop.remove_reader(descriptor)
        near._closed = True
    near._socket.close(linger=0)
    near._context.term()


def say(far: zmq.Socket[bytes], *words: str) -> None:
    """Send messages, and hold up the event loop until they have arrived."""
    for word in words:
        far.send(encode(LoadProgress(word, 0.0)))
    time.sleep(0.03)


@pytest.mark.asyncio
async def test_a_backlog_lets_others_have_their_turn() -> None:
    class Slow(Owner):
        def on_message(self, message: EngineMessage) -> None:
            time.sleep(0.002)
            super().on_message(message)

    owner = Slow()
    async with connected(owner) as (near, far):
        say(far, *map(str, range(20)))
        near.drain()
        assert 1 <= len(owner.messages) < 20
        words = await owner.words(21)
        assert words == ["hello", *map(str, range(20))]


@pytest.mark.asyncio
async def test_what_arrived_before_something_was_sent_is_heard() -> None:
    """ZeroMQ's descriptor tells of it once, and sending may be what takes notice."""
    owner = Owner()
    async with connected(owner) as (near, far):
        near.drain()
        for number in range(1, 6):
            say(far, str(number))
            near.send(Ping())
            words = await owner.words(number + 1)
            assert words[-1] == str(number)


@pytest.mark.asyncio
async def test_nothing_is_read_once_it_is_closed() -> None:
    """Also if a message that was delivered is why it is closed, with others behind it."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, error: errors.append(error))

    class Closing(Owner):
        def on_message(self, message: EngineMessage) -> None:
            super().on_message(message)
            near._closed = True
            near._socket.close(linger=0)

    owner = Closing()
    async with connected(owner) as (near, far):
        near.send(Ping())
        say(far, "too late")
        near.drain()
        await asyncio.sleep(0.01)
        assert len(owner.messages) == 1
        assert not errors
