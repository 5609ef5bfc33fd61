"""The compile workers: processes that can be killed, and limit their own memory and time, forked
from one that has loaded what they need.

``grammar.fork_server`` runs ``python -m grammar.worker FD``, where FD is its end of a socket pair.
The process ends when the other end is closed, and so do its workers.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from multiprocessing import reduction
from multiprocessing.connection import Connection

from grammar.confinement import address_space, give_way, set_limit
from grammar.errors import CompileFailed, CompileMemory, CompilerUnavailable, GrammarError
from grammar.jobs import (
    Backends,
    BlameJob,
    CompileJob,
    Compiler,
    Fork,
    Forked,
    Loaded,
    Reap,
    Reaped,
    Refused,
    Reply,
    Setup,
    ValidateJob,
    decode_request,
    encode,
    run,
)
from grammar.schema.checker import give_up
from grammar.vocabulary import Vocabulary

# Backends recurse as deeply as a grammar is nested, and a stack that ends takes the process with
# it. The threads of an engine have 8 MiB: what a worker gets through is safe there.
_STACK_BYTES = 2 << 20
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(fd: int) -> None:
    # A signal may be sent to all processes of the server. Only the pool decides when workers stop.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, give_up)
    give_way()
    with Connection(fd) as connection:
        try:
            try:
                server = _ForkServer(connection)
            except CompilerUnavailable as error:
                connection.send_bytes(encode(Refused.of(error)))
                return
            server.serve()
        except (EOFError, ConnectionError):
            return  # The pool is closed, or its process has ended.


class _ForkServer:
    """Has no thread beside its own, as a fork has only the thread that forks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        setup = decode_request(connection.recv_bytes())
        assert isinstance(setup, Setup)
        self._setup = setup
        self._compiler: Compiler | None = None
        self._prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
        self._workers: set[int] = set()
        if setup.eos_token_ids:
            vocabulary = Vocabulary(
                setup.tokens, setup.eos_token_ids, setup.special_ids, setup.size
            )
            backends = Backends(vocabulary)
            backends.load(setup.backend)
            self._compiler = Compiler(
                vocabulary, setup.backends, setup.limits, backends.load, here=[setup.backend]
            )
            self._compiler.warm_up()
        gc.freeze()  # a hundred thousand objects that stay forever
        _silence()
        self._send(Loaded())

    def serve(self) -> None:
        try:
            while True:
                match decode_request(self._connection.recv_bytes()):
                    case Fork():
                        self._send(self._fork(reduction.recv_handle(self._connection)))
                    case Reap(pid):
                        self._send(Reaped(self._reap(pid)))
                    case other:
                        raise AssertionError(other)
        finally:
            for pid in list(self._workers):
                self._reap(pid)

    def _fork(self, fd: int) -> Reply:
        ours = os.getpid()
        with Connection(fd) as connection:
            try:
                pid = os.fork()
            except OSError as error:  # no memory, no process ids
                return Refused.of(CompilerUnavailable(f"no process starts: {error}"))
            if pid:
                self._workers.add(pid)
                return Forked(pid)
            try:  # here the worker begins
                if self._prctl is not None:
                    self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                self._connection.close()
                if os.getppid() == ours:
                    _Worker(connection, self._setup, self._compiler).serve()
            finally:
                os._exit(0)

    def _reap(self, pid: int) -> int:
        """End a worker; returns the signal that had ended it before."""
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._workers.discard(pid)
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return 0 if ended_by == signal.SIGKILL else ended_by

    def _send(self, reply: Reply) -> None:
        self._connection.send_bytes(encode(reply))


class _Worker:
    def __init__(self, connection: Connection, setup: Setup, compiler: Compiler | None) -> None:
        self._connection = connection
        self._setup = setup
        self._compiler = compiler

    def serve(self) -> None:
        while True:
            job = decode_request(self._connection.recv_bytes())
            assert isinstance(job, CompileJob | ValidateJob | BlameJob)
            try:
                self._limit()
                reply: Reply = run(job, self._compiler)
            except GrammarError as error:
                reply = Refused.of(error)
            except MemoryError:
                reply = Refused.of(CompileMemory(self._setup.memory_bytes))
            except Exception as error:  # A library may raise anything.
                reply = Refused.of(self._failure(error))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
            self._connection.send_bytes(encode(reply))

    def _failure(self, error: Exception) -> GrammarError:
        if "bad_alloc" in str(error):
            return CompileMemory(self._setup.memory_bytes)
        return CompileFailed(f"the compiler failed: {type(error).__name__}: {error}")

    def _limit(self) -> None:
        """Limit memory to what is mapped now and a job's limit; the stack to well below that of an
        engine; and processor time, by SIGPROF, which ends the process."""
        set_limit(resource.RLIMIT_CORE, 0)
        set_limit(resource.RLIMIT_STACK, _STACK_BYTES)
        set_limit(resource.RLIMIT_AS, address_space() + self._setup.memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, self._setup.timeout_s)


def _silence() -> None:
    """Silence libraries, which print only what they also raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # Some libraries take long to end.
