"""The engine process as its client sees it: started, reached over a private socket, and stopped.

Nothing of an engine process outlives it: a restart makes a new folder, socket and process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import zmq

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, QueueFull
from engine.launch import IDLE_THREADS, Curve, Launch, import_path
from engine.messages import (
    ClientMessage,
    EngineMessage,
    Failed,
    Shutdown,
    decode_engine_message,
    encode,
)

MAX_SOCKET_PATH = 107
"""Bytes that ``sockaddr_un.sun_path`` holds on Linux, without its final NUL."""
MAX_DRAIN_S = 0.005
"""Time to take messages in one go, before other tasks of the event loop get their turn."""
READABLE = int(zmq.POLLIN)
"""As a number: an enumeration's ``&`` costs as much as asking the socket."""
SEND_HIGH_WATER_MARK = 4096
"""Messages queued towards an engine that does not read, before submitting is refused."""
LAST_WORDS_S = 0.2
"""How long a message sent just before an orderly exit may take to come through."""

VMSTAT = Path("/proc/vmstat")

OnMessage = Callable[[EngineMessage], None]


class OnExit(Protocol):
    def __call__(self, reason: str, *, was_killed: bool | None = None) -> None:
        """``was_killed``: whether somebody outside has killed it, so that no request is to blame;
        None if this side cannot know."""


class Transport(Protocol):
    """A connection to one engine, from its start to its end. Callbacks run on the event loop that
    it was made on."""

    def send(self, message: ClientMessage) -> None:
        """Never blocks. Raises ``QueueFull`` if the engine has stopped reading."""

    def drain(self) -> None:
        """Deliver what has arrived already."""

    def retire(self) -> None:
        """Have the engine's owner start another in its place."""

    async def stop(self, timeout_s: float) -> None:
        """Ask it to shut down; after ``timeout_s`` kill it. Nothing of it is left afterwards."""


MakeTransport = Callable[..., Transport]
"""Called with the engine's configuration, an ``OnMessage`` and an ``OnExit``; and with
``follows_kill=True``, as in ``Ready``, if the last one told so."""


class EngineSocket:
    """A ZeroMQ socket towards an engine, read by the event loop it was made on."""

    def __init__(self, socket_type: int, on_message: OnMessage, on_exit: OnExit) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message, self._on_exit = on_message, on_exit
        self._closed = False
        self._context = zmq.Context()
        self._socket = self._context.socket(socket_type)

    def send(self, message: ClientMessage) -> None:
        """Never blocks. Raises ``QueueFull`` if the engine has stopped reading."""
        try:
            self._socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            raise QueueFull("the engine does not take requests: try again later") from None
        # Sending may have eaten the descriptor's signal for messages that wait to be read.
        self._loop.call_soon(self.drain)

    def drain(self) -> None:
        """Deliver what has arrived already."""
        until = time.monotonic() + MAX_DRAIN_S
        while time.monotonic() < until:
            if self._closed:
                return
            if not has_message(self._socket):
                self._on_silence()
                return
            data = self._socket.recv(zmq.DONTWAIT)
            try:
                message = decode_engine_message(data)
            # Invalid UTF-8 and deep nesting have errors of their own.
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._on_poison(f"the engine sent what is no message: {error}")
                return
            self._receive(message)
        self._loop.call_soon(self.drain)

    def _receive(self, message: EngineMessage) -> None:
        self._on_message(message)

    def _on_silence(self) -> None:
        """All that has arrived is delivered."""

    def _on_poison(self, reason: str) -> None:
        """What arrived breaks the protocol: this engine is listened to no more."""
        self._close()
        self._on_exit(reason)

    def _close(self) -> None:
        self._closed = True


class EngineProcess(EngineSocket):
    """A ``Transport`` to a new ``python -m engine.process``, over a ZeroMQ pair."""

    module = "engine.process"
    arguments: tuple[str, ...] = ()
    """Of the module's command line."""

    def __init__(
        self,
        config: EngineConfig,
        on_message: OnMessage,
        on_exit: OnExit,
        *,
        shared_address: str | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        curve: Curve | None = None,
        epoch: int = 0,
        follows_kill: bool = False,
    ) -> None:
        """``shared_address``: where ``AttachedEngine`` of other processes finds it.
        ``environment``: variables of its own, beside those of this process. ``curve``, ``epoch``
        and ``follows_kill``: as in ``Launch``."""
        self._environment = environment
        self._num_oom_kills = _num_oom_kills()
        epoch = epoch or time.time_ns()
        super().__init__(zmq.PAIR, on_message, on_exit)
        self._exited = asyncio.Event()
        self._connected = self._failed = False
        self._directory, path = private_socket_path("engine")
        try:
            self._socket.sndhwm = SEND_HIGH_WATER_MARK
            self._socket.bind(f"ipc://{path}")
            self._process = self._spawn(
                Launch(
                    config=config,
                    address=f"ipc://{path}",
                    shared_address=shared_address,
                    curve=curve,
                    epoch=epoch,
                    follows_kill=follows_kill,
                )
            )
        except OSError as error:  # zmq.ZMQError is one too
            self._release()
            raise EngineDead(f"the engine process cannot be started: {error}") from error
        # ZeroMQ's descriptor says "something may have changed", for both directions.
        self._descriptor = self._socket.FD
        self._loop.add_reader(self._descriptor, self.drain)
        threading.Thread(target=self._wait, name="engine-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self, message: EngineMessage) -> None:
        if not self._connected:
            # Both ends are connected. Without the socket's name nobody else can be, and nothing is
            # left behind however the two processes end.
            self._connected = True
            shutil.rmtree(self._directory, ignore_errors=True)
        self._failed = self._failed or isinstance(message, Failed)
        super()._receive(message)

    def retire(self) -> None:
        """It ends, which its client takes for its death."""
        self.send(Shutdown())

    async def stop(self, timeout_s: float) -> None:
        try:
            if not (self._closed or self._exited.is_set()) and timeout_s > 0:
                await self._ask_to_stop(timeout_s)
        finally:
            # No await from here on: a cancelled stop must not leave a process either.
            if self._process.poll() is None:
                self._process.kill()
            self._close()
        await self._exited.wait()

    async def _ask_to_stop(self, timeout_s: float) -> None:
        try:
            self.send(Shutdown())
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        except (QueueFull, TimeoutError):
            pass

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, *self.arguments],
            stdin=subprocess.PIPE,
            env={
                **IDLE_THREADS,
                **os.environ,
                **self._environment,
                "PYTHONPATH": import_path(),
            },
            process_group=0,  # Ctrl-C in a terminal is for the gateway, which stops the engine
        )
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(launch) + b"\n")
            process.stdin.flush()  # left open: its end tells the engine that its client died
        except BrokenPipeError:
            pass  # It is dead already, which ``_wait`` reports.
        return process

    def _wait(self) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # The event loop is closed: nobody waits.
            self._loop.call_soon_threadsafe(self._died, code)

    def _died(self, code: int) -> None:
        self._exited.set()
        self.drain()
        if code >= 0 and not self._failed and not self._closed:
            self._loop.call_later(LAST_WORDS_S, self._report, code)
        else:
            self._report(code)

    def _report(self, code: int) -> None:
        self.drain()
        if not self._closed:
            self._close()
            # The kernel kills for memory, which a request may have taken, by the same signal.
            is_kill = code == -signal.SIGKILL and self._num_oom_kills is not None
            was_killed = is_kill and self._num_oom_kills == _num_oom_kills()
            self._on_exit(_death(code), was_killed=was_killed)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._release()

    def _release(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._directory, ignore_errors=True)


class ReplayProcess(EngineProcess):
    """As ``EngineProcess``, but without a model: it replays ``tokens_per_s`` to each request."""

    module = "engine.replay"

    def __init__(
        self,
        config: EngineConfig,
        on_message: OnMessage,
        on_exit: OnExit,
        *,
        tokens_per_s: float,
        **options: Any,
    ) -> None:
        """``options``: of ``EngineProcess``."""
        self.arguments = (repr(tokens_per_s),)
        super().__init__(config, on_message, on_exit, **options)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has arrived. Asking costs a third of finding out by an exception."""
    events = socket.get(zmq.EVENTS)
    assert isinstance(events, int)
    return events & READABLE != 0


def private_socket_path(name: str) -> tuple[Path, Path]:
    """A new folder that only this user may enter, and a path in it that fits a socket's name."""
    for parent in (None, "/tmp"):
        directory = Path(tempfile.mkdtemp(prefix="sluice-", dir=parent))
        path = directory / name
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return directory, path
        directory.rmdir()
    raise ConfigError(f"no folder for a socket: TMPDIR is too long ({tempfile.gettempdir()})")


def _num_oom_kills() -> int | None:
    """How many processes of this machine the kernel has killed for their memory; None if it does
    not say."""
    try:
        counts = dict(line.split() for line in VMSTAT.read_text().splitlines())
        return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _death(code: int) -> str:
    if code < 0:
        name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        return f"the engine process was killed by {name}"
    return f"the engine process exited with code {code}: see its output above"
