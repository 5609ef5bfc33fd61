"""A process that has loaded a backend's library and forks workers from itself. A worker that a
grammar has ended is replaced in milliseconds so, where the library takes seconds to load."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import IO

from grammar.errors import CompilerUnavailable
from grammar.jobs import (
    Fork,
    Forked,
    Job,
    Loaded,
    Reap,
    Reaped,
    Refused,
    Reply,
    Result,
    decode_reply,
    encode,
)

_MAX_LAST_WORDS = 4_096


class ForkServer:
    """The process, and our end of its socket. It ends with its owner, its workers with it; whoever
    forgets it has closed it. Thread-safe; its methods block."""

    def __init__(self, load_timeout_s: float) -> None:
        """Starts the process. Raises ``OSError``."""
        self._timeout_s = load_timeout_s
        with contextlib.ExitStack() as undo:  # if no process can be started
            self._stderr = undo.enter_context(tempfile.TemporaryFile())
            ours, theirs = self._sockets()
            undo.enter_context(ours)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "grammar.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    start_new_session=True,  # Ctrl-C in a terminal must not reach it.
                )
            self._connection = Connection(os.dup(ours.fileno()))
            undo.pop_all()
        self._lock = threading.Lock()
        self._loaded = threading.Event()
        self.close = weakref.finalize(
            self, _end, self._process, ours, self._connection, self._stderr, self._loaded
        )
        """Ends the process and its workers. Idempotent."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def load(self, setup: bytes) -> None:
        """Load the library. Raises ``CompilerUnavailable``."""
        try:
            self._connection.send_bytes(setup)
            reply = self._receive()
        except TimeoutError:
            message = f"it did not start within {self._timeout_s:g} s"
            raise CompilerUnavailable(message) from None
        except (EOFError, OSError):
            raise CompilerUnavailable(self._last_words()) from None
        if isinstance(reply, Refused):
            raise reply.exception()
        assert isinstance(reply, Loaded)
        self._loaded.set()

    def fork(self) -> Worker:
        """A new worker. Raises ``CompilerUnavailable``, or ``EOFError`` or ``OSError`` if the
        process has died."""
        ours, theirs = self._sockets()
        with ours, theirs:
            reply = self._ask(Fork(), theirs)
            if isinstance(reply, Refused):
                raise reply.exception()
            assert isinstance(reply, Forked)
            return Worker(self, reply.pid, Connection(os.dup(ours.fileno())))

    def reap(self, pid: int) -> int:
        """End a worker; returns the signal that had ended it before, if one had. Raises
        ``EOFError`` or ``OSError`` if this process has died, and its workers with it."""
        reply = self._ask(Reap(pid))
        assert isinstance(reply, Reaped)
        return reply.signal

    def _ask(self, message: Fork | Reap, handle: socket.socket | None = None) -> Reply:
        with self._lock:
            try:
                self._connection.send_bytes(encode(message))
                if handle is not None:
                    reduction.send_handle(self._connection, handle.fileno(), self.pid)
                return self._receive()
            except BaseException:  # Its next answer would be this one's.
                self.close()
                raise

    def _sockets(self) -> tuple[socket.socket, socket.socket]:
        """Our end and theirs."""
        ours, theirs = socket.socketpair()
        # Otherwise a process that hangs before it reads would block us forever.
        timeout = struct.pack("ll", math.ceil(self._timeout_s), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        return ours, theirs

    def _receive(self) -> Reply:
        if not self._connection.poll(self._timeout_s):
            raise TimeoutError
        return decode_reply(self._connection.recv_bytes())

    def _last_words(self) -> str:
        """What a process that died as it started has written."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._timeout_s)  # on a busy machine its end may follow late
        code = self._process.poll()
        if code is None or self._stderr.closed:
            return "it does not answer"
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _MAX_LAST_WORDS))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"it {ended} as it started: {lines[-1] if lines else 'it said nothing'}"


def _end(
    process: subprocess.Popen[bytes],
    ours: socket.socket,
    connection: Connection,
    stderr: IO[bytes],
    loaded: threading.Event,
) -> None:
    """End a process; one that reads its socket ends its workers first."""
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)  # which whoever waits at the other copy sees
    if loaded.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
    process.kill()
    process.wait()
    ours.close()
    connection.close()
    stderr.close()


class Worker:
    """A forked worker, and our end of its socket. One thread at a time uses it."""

    def __init__(self, server: ForkServer, pid: int, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self.pid = pid
        self.num_jobs = 0

    @property
    def is_alive(self) -> bool:
        """Of one without a job."""
        return not self._connection.poll()  # What a dead one would say is EOF.

    def ask(self, job: Job, timeout_s: float) -> Result | Refused:
        """Send a job, and return the result. Raises ``TimeoutError``, or ``EOFError`` or
        ``OSError`` if the process has died."""
        self.num_jobs += 1
        self._connection.send_bytes(encode(job))
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        reply = decode_reply(self._connection.recv_bytes())
        assert not isinstance(reply, Loaded | Forked | Reaped)
        return reply

    def close(self) -> int:
        """End the process; returns the signal that had ended it before, 0 if none is known."""
        self._connection.close()
        try:
            return self._server.reap(self.pid)
        except (EOFError, OSError):
            return 0


def _environment() -> dict[str, str]:
    """Our environment with our import path, and with few malloc arenas, which count towards the
    memory limit."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
