"""A ``Transport`` to an engine process that another process has spawned."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import uuid4

import zmq

from engine.client.transport import (
    SEND_HIGH_WATER_MARK,
    EngineSocket,
    OnExit,
    OnMessage,
    has_message,
)
from engine.config import EngineConfig
from engine.launch import Curve
from engine.messages import (
    Attach,
    ClientMessage,
    EngineMessage,
    Failed,
    GenerateRequest,
    Ready,
    encode,
)
from engine.sockets import secure
from engine.vision import with_pixels


class AttachedEngine(EngineSocket):
    """Attaches to the engine at ``address``, and waits for it if it does not run yet.

    The engine's owner restarts it at the same address. So a lost connection ends this transport,
    and a new transport finds the new engine. One of another host has keys and an epoch: nothing
    that an engine of another epoch says is heard.
    """

    def __init__(
        self,
        _config: EngineConfig,
        on_message: OnMessage,
        on_exit: OnExit,
        *,
        address: str,
        curve: Curve | None = None,
        epoch: int = 0,
        on_stale: Callable[[], None] = lambda: None,
        on_retire: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_stale`` is called when an engine of another epoch answers; ``on_retire`` tells the
        engine's owner to start another."""
        super().__init__(zmq.DEALER, on_message, on_exit)
        self._epoch, self._on_stale, self.retire = epoch, on_stale, on_retire
        self._shares_memory = address.startswith("ipc:")
        self._socket.identity = f"{os.getpid()}-{uuid4().hex}".encode()
        self._socket.sndhwm = SEND_HIGH_WATER_MARK
        if curve is not None:
            self._socket.curve_serverkey = curve.peer.encode()
            secure(self._socket, curve)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._socket.send(encode(Attach(epoch)))
        self._descriptors = (self._socket.FD, self._monitor.FD)
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self.drain)
        self._loop.call_soon(self.drain)  # as after any sending

    def send(self, message: ClientMessage) -> None:
        """As ``Transport.send``. An engine that may be on another host gets pictures whole."""
        if isinstance(message, GenerateRequest) and message.images and not self._shares_memory:
            message = with_pixels(message)
        super().send(message)

    async def stop(self, timeout_s: float) -> None:
        """Detach. The engine keeps running, and aborts this client's requests."""
        self._close()

    def _receive(self, message: EngineMessage) -> None:
        if isinstance(message, Ready) and self._epoch and message.epoch != self._epoch:
            self._on_stale()
            self._on_poison("another engine than the registered one answers there")
        elif isinstance(message, Failed):
            # It gives up this client, not its life.
            self._close()
            self._on_exit(message.message)
        else:
            super()._receive(message)

    def _on_silence(self) -> None:
        """A silent socket means that the engine is gone."""
        if not has_message(self._monitor):
            return
        self._close()
        self._on_exit("the connection to the engine process broke")

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._context.term()
