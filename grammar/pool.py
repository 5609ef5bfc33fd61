"""A pool of worker processes, which compile and validate, and are killed if they take too long."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import threading
from collections.abc import Sequence

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
from grammar.fork_server import ForkServer, Worker
from grammar.jobs import (
    Blamed,
    BlameJob,
    Compiled,
    CompileJob,
    Elsewhere,
    Job,
    Refused,
    Result,
    Setup,
    Validated,
    ValidateJob,
    encode,
)
from grammar.schema.paths import ROOT
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report
from grammar.vocabulary import Vocabulary

_TOO_DEEP = "its rules or schemas lead through too many others"
_WALL_PER_CPU = 20.0
"""The time that a job may take for each second of processor time: on a busy machine it waits."""
_MAX_JOBS = 1_000  # of one worker, which is then replaced, because its memory becomes fragmented


class WorkerPool:
    """Runs jobs in at most ``num_workers`` processes, forked when needed from one that has loaded
    one backend: by default the first of ``backends``, which are all that a grammar may be for.

    ``timeout_s`` limits the processor time of each job, ``memory_bytes`` what it adds to the
    memory of its process. ``load_timeout_s`` limits the start of the process that loads the
    library, which may take longer on a busy machine than any job. Without a vocabulary, or with one
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
        # One entry for each worker that may run; None for one that is not forked. Workers that run
        # are used first.
        self._idle: queue.PriorityQueue[tuple[bool, int, Worker | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        for _ in range(num_workers):
            self._put_idle(None)
        self._forking = threading.Lock()
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._alive: set[Worker] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running workers."""
        with self._lock:
            return [worker.pid for worker in self._alive]

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
        """End all workers; jobs under way fail. Idempotent."""
        with self._lock:
            self._closed = True
            server = self._server
        if server is not None:
            server.close()  # A thread that uses a worker gets an error, and discards it.
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
        worker = self._lease()
        wall_s = self._timeout_s * _WALL_PER_CPU
        try:
            reply = worker.ask(job, wall_s)
        except TimeoutError:  # What uses its processor time is ended by that.
            self._replace(worker)
            cause = f"it did not get {self._timeout_s:g} s of processor time in {wall_s:g} s"
            raise CompilerUnavailable(cause) from None
        except (EOFError, OSError):
            raise self._death(self._replace(worker)) from None
        except BaseException:  # Also for an interrupt: a lost entry would leave others waiting.
            self._replace(worker)
            raise
        self._release(worker)
        if isinstance(reply, Refused):
            raise reply.exception()
        return reply

    def _death(self, ended_by: int) -> GrammarError:
        if self._closed:
            return CompileFailed("the grammar compiler was closed")
        match ended_by:
            case signal.SIGABRT:  # which is how Rust and C++ run out of memory
                return CompileMemory(self._memory_bytes)
            case signal.SIGPROF | signal.SIGXCPU:
                return CompileTimeout(self._timeout_s)
            case signal.SIGSEGV | signal.SIGBUS:  # The end of the stack, which it would hit again.
                return GrammarTooLarge(ROOT, _TOO_DEEP)
        return CompilerCrashed()

    def _lease(self) -> Worker:
        _, _, worker = self._idle.get()
        if worker is not None and worker.is_alive:
            return worker
        if worker is not None:
            self._discard(worker)
        try:
            return self._fork()
        except BaseException:
            self._put_idle(None)
            raise

    def _put_idle(self, worker: Worker | None) -> None:
        self._idle.put((worker is None, -next(self._order), worker))

    def _fork(self) -> Worker:
        with self._forking:
            try:
                worker = self._running_server().fork()
            except (EOFError, OSError):
                raise self._death(0) from None
        with self._lock:
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.close()
        raise CompileFailed("the grammar compiler was closed")

    def _running_server(self) -> ForkServer:
        """Starts one if there is none. Raises ``GrammarError``."""
        with self._lock:
            if self._closed:
                raise CompileFailed("the grammar compiler was closed")
            if self._server is not None and self._server.is_alive:
                return self._server
            try:
                server = self._server = ForkServer(self._load_timeout_s)
            except OSError as error:  # no memory, no process ids, no file descriptors
                raise CompilerUnavailable(f"no process starts: {error}") from None
        try:
            server.load(self._setup)
        except BaseException as error:
            server.close()
            if self._closed and isinstance(error, CompilerUnavailable):
                raise CompileFailed("the grammar compiler was closed") from None
            raise
        return server

    def _release(self, worker: Worker) -> None:
        with self._lock:
            keep = not self._closed and worker.num_jobs < _MAX_JOBS
            if keep:
                self._put_idle(worker)
        if not keep:
            self._replace(worker)

    def _replace(self, worker: Worker) -> int:
        """Returns the signal that had ended the worker."""
        ended_by = self._discard(worker)
        self._put_idle(None)
        return ended_by

    def _discard(self, worker: Worker) -> int:
        ended_by = worker.close()
        with self._lock:
            self._alive.discard(worker)
        return ended_by
