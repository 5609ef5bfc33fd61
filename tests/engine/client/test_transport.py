from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable

import msgspec
import psutil
import pytest
import uvloop
import zmq

from engine.client import transport
from engine.client.transport import EngineProcess, EngineSocket, Launch
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
        self.exited = asyncio.Event()

    def on_message(self, message: EngineMessage) -> None:
        self.messages.append(message)
        self.changed.set()

    def on_exit(self, reason: str) -> None:
        self.exit = reason
        self.exited.set()

    async def message(self, kind: type) -> EngineMessage:
        async with asyncio.timeout(5):
            while True:
                for message in self.messages:
                    if isinstance(message, kind):
                        return message
                self.changed.clear()
                await self.changed.wait()


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
    await engine.stop(5)
    await engine.stop(0)


def test_an_unnamed_signal_is_reported_too() -> None:
    assert transport._death(-37).endswith("killed by signal 37")
    assert transport._death(-11).endswith("killed by SIGSEGV")


def test_launch_survives_json() -> None:
    launch = Launch(
        config=EngineConfig(model="m", max_model_len=7, device="cpu"), address="ipc:///x"
    )
    line = msgspec.json.encode(launch)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Launch) == launch


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


@pytest.mark.asyncio
async def test_a_backlog_lets_others_have_their_turn() -> None:
    heard: list[EngineMessage] = []

    def hear(message: EngineMessage) -> None:
        time.sleep(0.002)
        heard.append(message)

    receiver = EngineSocket(zmq.PAIR, hear, lambda reason: None)
    port = receiver._socket.bind_to_random_port("tcp://127.0.0.1")
    with zmq.Context() as context, context.socket(zmq.PAIR) as sender:
        sender.connect(f"tcp://127.0.0.1:{port}")
        for number in range(20):
            sender.send(encode(LoadProgress(str(number), 0.0)))
        receiver._socket.poll(5000)
        await asyncio.sleep(0.05)
        receiver.drain()
        assert 1 <= len(heard) < 20
        async with asyncio.timeout(10):
            while len(heard) < 20:
                await asyncio.sleep(0)
                receiver.drain()
        assert [one.message for one in heard if isinstance(one, LoadProgress)] == [
            str(number) for number in range(20)
        ]
        receiver._closed = True
    receiver._socket.close(linger=0)
    receiver._context.term()
