"""Whom an engine process works for: the owner that spawned it, and those that attach themselves.

The owner is at the other end of a private pair. Where several gateway workers share the engine,
each of them attaches to a second, routed socket. An answer goes to whoever sent its request. A
client that is gone, or that falls so far behind that its queue is full, loses its requests: the
others do not wait for it.
"""

from __future__ import annotations

import hmac
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import zmq

from engine.messages import (
    Attach,
    BeginEpoch,
    ClientMessage,
    EngineMessage,
    Failed,
    Probe,
    RequestOutput,
    Shutdown,
    StepOutputs,
    decode_client_message,
    encode,
)

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

    from engine.launch import Curve

logger = logging.getLogger(__name__)

SEND_HIGH_WATER_MARK = 1000
"""Messages the owner may be behind before the engine waits for it."""
ATTACHED_HIGH_WATER_MARK = 10_000
"""Messages an attached client may be behind before it loses its requests."""

OWNER = b""
_GIVEN_UP = Failed(
    "the engine gave up the requests of this client, which fell too far behind, sent what is no"
    " message, or spoke to an engine that was thought to be gone"
)
HEARTBEAT_MS, SILENCE_MS = 3_000, 10_000
"""How often each side of a connection between hosts shows that it lives, and the silence after
which it is gone."""
MAX_FRAME_BYTES = 64 * 1024 * 1024

Sockets = zmq.Context[zmq.Socket[bytes]]


class Clients:
    """The engine's ends of all its sockets. Clients are named by their ZeroMQ identity."""

    def __init__(
        self,
        owner: zmq.Socket[bytes],
        attached: zmq.Socket[bytes] | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        """``owner``: a connected PAIR; ``attached``: a bound ROUTER, as ``listen`` makes it."""
        self.epoch = epoch
        self._owner = owner
        self._attached = attached
        self._poller = zmq.Poller()
        self._poller.register(owner, zmq.POLLIN)
        if attached is not None:
            self._poller.register(attached, zmq.POLLIN)
        self._sender_of: dict[str, bytes] = {}
        """Of requests that attached clients sent and that have not ended."""
        self._lost: set[bytes] = set()
        self._orphans: list[str] = []
        """Requests of lost clients, until ``deliver`` or ``probe`` hands them over."""

    def received(self, *, wait: bool) -> Iterator[tuple[bytes, ClientMessage]]:
        """All that has arrived, each with its sender; with ``wait`` at least one."""
        if wait:
            self._poller.poll()
        try:
            while True:
                yield OWNER, decode_client_message(self._owner.recv(zmq.DONTWAIT))
        except zmq.Again:
            pass
        if self._attached is None:
            return
        try:
            while True:
                client, *data = self._attached.recv_multipart(zmq.DONTWAIT)
                if client in self._lost:
                    self._tell(client, _GIVEN_UP)
                elif (message := self._decoded(client, b"".join(data))) is not None:
                    yield client, message
        except zmq.Again:
            return

    def _decoded(self, client: bytes, data: bytes) -> ClientMessage | None:
        """A client's message. One that is none, or that comes with another epoch, ends its
        connection."""
        try:
            message = decode_client_message(data)
        # Invalid UTF-8 and deep nesting have errors of their own.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("a client sent what is no message, and is given up: %s", error)
        else:
            is_wrong = isinstance(message, Attach) and message.epoch not in (0, self.epoch)
            if not is_wrong and not isinstance(message, BeginEpoch | Shutdown):
                return message
        self._give_up(client)
        self._tell(client, _GIVEN_UP)
        return None

    def begin_epoch(self, epoch: int) -> list[str]:
        """Forget all attached clients; returns their requests, to be aborted."""
        self.epoch = epoch
        for client in set(self._sender_of.values()) - self._lost:
            self._tell(client, _GIVEN_UP)
            self._give_up(client)
        return self._take_orphans()

    def expects(self, client: bytes, request_id: str) -> None:
        """The answers to this request are for ``client``."""
        if client != OWNER:
            self._sender_of[request_id] = client

    def send(self, client: bytes, message: EngineMessage) -> None:
        """Waits for the owner if it is far behind, for nobody else."""
        if client == OWNER:
            self._owner.send(encode(message))
        elif not self._tell(client, message):
            self._give_up(client)

    def deliver(self, outputs: list[RequestOutput]) -> list[str]:
        """To each its own; returns requests that nobody waits for any more, to be aborted."""
        if not self._sender_of:
            self._owner.send(encode(StepOutputs(outputs)))
            return []
        sorted_outputs: defaultdict[bytes, list[RequestOutput]] = defaultdict(list)
        for output in outputs:
            sorted_outputs[self._sender_of.get(output.request_id, OWNER)].append(output)
            if output.finish_reason is not None:
                self._sender_of.pop(output.request_id, None)
        for client, theirs in sorted_outputs.items():
            if client not in self._lost:
                self.send(client, StepOutputs(theirs))
        return self._take_orphans()

    def probe(self) -> list[str]:
        """Look for clients that are gone; returns their requests, to be aborted.

        Only sending shows it, and to one whose requests wait for its own word (a grant, a reader)
        nothing else is sent.
        """
        for client in set(self._sender_of.values()) - self._lost:
            self.send(client, Probe())
        return self._take_orphans()

    def _give_up(self, client: bytes) -> None:
        self._lost.add(client)
        self._orphans += [name for name, sender in self._sender_of.items() if sender == client]

    def close(self) -> None:
        """Close the shared socket; the owner's is its maker's."""
        if self._attached is not None:
            self._attached.close()

    def _take_orphans(self) -> list[str]:
        orphans, self._orphans = self._orphans, []
        return orphans

    def _tell(self, client: bytes, message: EngineMessage) -> bool:
        assert self._attached is not None
        try:
            self._attached.send_multipart((client, encode(message)), zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True


def secure(socket: zmq.Socket[bytes], curve: Curve) -> None:
    """Make a socket fit for the network between hosts: encrypted, with bounded messages, and with
    heartbeats that show the silence of the other side."""
    socket.curve_publickey = curve.public.encode()
    socket.curve_secretkey = curve.secret.encode()
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.ipv6 = True
    socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS


def admit_only(context: Sockets, curve: Curve) -> ThreadAuthenticator:
    """Have ``listen`` refuse clients with another key; runs until it is stopped."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(credentials_provider=_Peer(curve.peer))
    return authenticator


class _Peer:
    def __init__(self, public: str) -> None:
        self._public = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._public)


def listen(context: Sockets, address: str, curve: Curve | None = None) -> zmq.Socket[bytes]:
    """A socket that clients may attach to. Those of other hosts need keys: see ``admit_only``."""
    socket = context.socket(zmq.ROUTER)
    if curve is not None:
        socket.curve_server = True
        secure(socket, curve)
    # A message for a client that is gone or full is an error, not silence.
    socket.router_mandatory = True
    socket.sndhwm = ATTACHED_HIGH_WATER_MARK
    socket.linger = 0
    socket.bind(address)
    return socket
