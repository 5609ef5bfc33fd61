"""A pool of worker processes, which compile and validate, and are killed if they take too long."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection

from grammar.audit import BACKENDS
from grammar.errors import (
    CompileFailed,
    CompileMemory,
    CompilerCrashed,
    CompilerUnavailable,
    CompileTimeout,
    GrammarError,
    GrammarTooLarge,
)
from grammar.jobs import (
    Blamed,
    BlameJob,
    Compiled,
    CompileJob,
    Elsewhere,
    Job,
    Loaded,
    Refused,
    Reply,
    Result,
    Setup,
    Validated,
    ValidateJob,
    decode_reply,
    encode,
)
from grammar.schema.paths import ROOT
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report
from grammar.vocabulary import Vocabulary

_MAX_LAST_WORDS = 4_096
_TOO_DEEP = "its rules or schemas lead through too many others"
_WALL_PER_CPU = 5.0
"""The time that a job may take for each second of processor time: on a busy machine it waits."""
_MAX_JOBS = 1_000  # of one worker, which is then replaced, because its memory becomes fragmented


class WorkerPool:
    """Runs jobs in at most ``num_workers`` processes, which are started when first needed and have
    one backend: by default the first of ``backends``, which are all that a grammar may be for.

    ``timeout_s`` limits the processor time of each job, ``memory_bytes`` what it adds to the
    memory of its process. ``load_timeout_s`` limits the start of a process with its library, which
    may take longer on a busy machine than any job. Without a vocabulary, or with one
    without EOS, it can only validate. Thread-safe; its methods block.
    """

    def __init__(
        self,
        vocabulary: Vocabulary | None = None,
        *,
        backends: Sequence[str] = BACKENDS,
        backend: str | None = None,
        limits: Limits | None = None,
        num_workers: int = 1,
        timeout_s: float = 1.0,
        memory_bytes: int = 64 << 20,
        load_timeout_s: float = 120.0,
    ) -> None:
        assert num_workers > 0
        self._timeout_s = timeout_s
        self._load_timeout_s = load_timeout_s
        self._memory_bytes = memory_bytes
        self._setup = encode(
            Setup(
                list(vocabulary.tokens) if vocabulary else [],
                sorted(vocabulary.eos_token_ids) if vocabulary else [],
                sorted(vocabulary.special_ids) if vocabulary else [],
                vocabulary.size if vocabulary else 0,
                list(backends),
                backend or backends[0],
                limits or Limits(),
                timeout_s,
                memory_bytes,
            )
        )
        # One entry for each worker that may run; None for one that is not started. Workers that
        # run are used first.
        self._idle: queue.PriorityQueue[tuple[bool, int, _Process | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        for _ in range(num_workers):
            self._put_idle(None)
        self._lock = threading.Lock()
        self._alive: set[_Process] = set()
        self._closed = False
        # For owners that do not close the pool: no worker outlives it, nor this process.
        weakref.finalize(self, _kill_all, self._alive)

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        with self._lock:
            return [process.pid for process in self._alive if process.is_alive]

    def start(self) -> None:
        """Start one worker now, so that the first job need not wait for it."""
        self._release(self._lease())

    def compile(self, job: CompileJob) -> Compiled | Elsewhere:
        """Raises ``GrammarError``; one of a limit on time, memory or stack names the keyword that
        most likely is at fault."""
        try:
            result = self._run(job)
        except CompileTimeout as error:
            raise CompileTimeout(error.limit_s, self._culprit(job.spec)) from None
        except CompileMemory as error:
            raise CompileMemory(error.limit_bytes, self._culprit(job.spec)) from None
        except GrammarTooLarge as error:
            if error.message != _TOO_DEEP:
                raise
            raise GrammarTooLarge(self._culprit(job.spec), _TOO_DEEP) from None
        assert isinstance(result, Compiled | Elsewhere)
        return result

    def _culprit(self, spec: GrammarSpec) -> str:
        try:
            blamed = self._run(BlameJob(spec))
        except GrammarError:
            return ROOT
        assert isinstance(blamed, Blamed)
        return blamed.path

    def validate(self, spec: GrammarSpec, text: str) -> Report:
        """As ``grammar.validation.validate``. Raises ``CompileFailed`` where it cannot be done
        within the limits."""
        result = self._run(ValidateJob(spec, text))
        assert isinstance(result, Validated)
        return result.report

    def close(self) -> None:
        """Kill all workers; jobs under way fail. Idempotent."""
        with self._lock:
            self._closed = True
            for process in self._alive:
                process.kill()  # The thread that uses it gets an error, and discards it.
        for _ in range(self._idle.qsize()):
            with contextlib.suppress(queue.Empty):
                _, _, idle = self._idle.get_nowait()
                if idle is not None:
                    self._discard(idle)
                self._put_idle(None)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, job: Job) -> Result:
        try:
            return self._attempt(job)
        except CompilerCrashed:  # Something else may have killed it, so the job gets a second try.
            return self._attempt(job)

    def _attempt(self, job: Job) -> Result:
        process = self._lease()
        try:
            reply = process.ask(job, self._timeout_s * _WALL_PER_CPU)
        except TimeoutError:
            self._renew(process)
            raise CompileTimeout(self._timeout_s) from None
        except (EOFError, OSError):
            self._renew(process)
            raise self._death(process) from None
        except BaseException:  # Also for an interrupt: a lost entry would leave others waiting.
            self._replace(process)
            raise
        self._release(process)
        if isinstance(reply, Refused):
            raise reply.exception()
        return reply

    def _death(self, process: _Process) -> GrammarError:
        if self._closed:
            return CompileFailed("the grammar compiler was closed")
        match process.signal:
            case signal.SIGABRT:  # which is how Rust and C++ run out of memory
                return CompileMemory(self._memory_bytes)
            case signal.SIGPROF | signal.SIGXCPU:
                return CompileTimeout(self._timeout_s)
            case signal.SIGSEGV | signal.SIGBUS:  # The end of the stack, which it would hit again.
                return GrammarTooLarge(ROOT, _TOO_DEEP)
        return CompilerCrashed()

    def _lease(self) -> _Process:
        _, _, process = self._idle.get()
        if process is not None and process.is_alive:
            return process
        if process is not None:
            self._discard(process)
        try:
            return self._spawn()
        except BaseException:
            self._put_idle(None)
            raise

    def _put_idle(self, process: _Process | None) -> None:
        self._idle.put((process is None, -next(self._order), process))

    def _spawn(self) -> _Process:
        with self._lock:
            if self._closed:
                raise CompileFailed("the grammar compiler was closed")
            try:
                process = _Process(self._load_timeout_s)
            except OSError as error:  # no memory, no process ids, no file descriptors
                raise CompilerUnavailable(f"no process starts: {error}") from None
            self._alive.add(process)
        try:
            process.set_up(self._setup)
        except (EOFError, OSError):
            self._discard(process, patience_s=2.0)
            if self._closed:
                raise CompileFailed("the grammar compiler was closed") from None
            raise CompilerUnavailable(process.last_words) from None
        except BaseException:
            self._discard(process)
            raise
        return process

    def _release(self, process: _Process) -> None:
        with self._lock:
            keep = not self._closed and process.num_jobs < _MAX_JOBS
            if keep:
                self._put_idle(process)
        if not keep:
            self._replace(process)

    def _replace(self, process: _Process) -> None:
        self._discard(process)
        self._put_idle(None)

    def _renew(self, process: _Process) -> None:
        """Start another in the place of one that a job has ended: whoever asked for that job waits
        for it, and not whoever comes next."""
        self._discard(process)
        successor = None
        try:
            with contextlib.suppress(GrammarError):  # which whoever comes next will hear
                successor = self._spawn()
        finally:
            self._put_idle(successor)

    def _discard(self, process: _Process, *, patience_s: float = 0.05) -> None:
        process.close(patience_s)
        with self._lock:
            self._alive.discard(process)


def _kill_all(processes: set[_Process]) -> None:
    for process in list(processes):
        process.close()


class _Process:
    """One worker process, and our end of its socket. One thread at a time uses it, and closes it in
    the end; only ``kill`` may be called by others."""

    def __init__(self, load_timeout_s: float) -> None:
        self._load_timeout_s = load_timeout_s
        self.last_words = ""
        """What a process that died during its start has written."""
        with contextlib.ExitStack() as undo:  # if no process can be started
            self._stderr = undo.enter_context(tempfile.TemporaryFile())
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            # Otherwise a process that hangs before it reads would block us forever.
            timeout = struct.pack("ll", math.ceil(load_timeout_s), 0)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
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
            self._connection = Connection(ours.detach())
            undo.pop_all()
        self.num_jobs = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def signal(self) -> int:
        """The signal that ended the process; 0 or less if none has."""
        return -(self._process.returncode or 0)

    def set_up(self, setup: bytes) -> None:
        """Set the process up. Raises ``CompilerUnavailable``, or ``EOFError`` or ``OSError`` if it
        has died."""
        self._connection.send_bytes(setup)
        try:
            reply = self._receive(self._load_timeout_s)
        except TimeoutError:
            message = f"it did not start within {self._load_timeout_s:g} s"
            raise CompilerUnavailable(message) from None
        if isinstance(reply, Refused):
            raise reply.exception()
        assert isinstance(reply, Loaded)

    def ask(self, job: Job, timeout_s: float) -> Result | Refused:
        """Send a job, and return the result. Raises ``TimeoutError``, or ``EOFError`` or
        ``OSError`` if the process has died."""
        self.num_jobs += 1
        self._connection.send_bytes(encode(job))
        reply = self._receive(timeout_s)
        assert not isinstance(reply, Loaded)
        return reply

    def _receive(self, timeout_s: float) -> Reply:
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        return decode_reply(self._connection.recv_bytes())

    def kill(self) -> None:
        """Kill the process, from any thread; the thread that uses it gets ``EOFError`` or
        ``OSError``."""
        self._process.kill()
        self._process.wait()

    def close(self, patience_s: float = 0.05) -> None:
        """End the process. patience_s: time for it to end by itself, so that its exit status tells
        why it died. Idempotent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()
        self._connection.close()
        self._keep_last_words()

    def _keep_last_words(self) -> None:
        if self._stderr.closed:
            return
        with self._stderr:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _MAX_LAST_WORDS))
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        code = self._process.returncode
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self.last_words = f"it {ended} as it started: {lines[-1] if lines else 'it said nothing'}"


def _environment() -> dict[str, str]:
    """Our environment with our import path, and with few malloc arenas, which count towards the
    memory limit."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
