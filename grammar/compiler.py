"""Compiles grammars with the best backend, in a process that can be killed, and caches them."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import msgspec

from grammar.audit import BACKENDS
from grammar.backends.base import Backend, BackendGrammar
from grammar.cache import ByteLRU
from grammar.errors import CompileFailed, CompilerUnavailable, GrammarError, InvalidGrammar
from grammar.jobs import Backends, Compiled, CompileJob, Compiler, Elsewhere, allowed_tokens
from grammar.matcher import Matcher
from grammar.plan import Candidate
from grammar.pool import WorkerPool
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report
from grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# How long a failure for lack of time or memory is cached. It is not forever, because the load of
# the machine may be the cause.
_FAILURE_TTL_S = 60.0
_ENTRY_BYTES = 1_000  # of the cache itself, for each entry

Result = TypeVar("Result")
_Job = Callable[[Callable[[], None]], None]
"""What it is given is called once it is done."""


class _Service(ABC, Generic[Result]):
    """Does slow work for a spec in the background, once for all callers, and caches the result.

    ``backends``: among those that enforce a grammar equally well, the first one is used.
    Each of them has ``num_workers`` processes and threads, which start when it is first needed, so
    that nobody waits for the import of a library that their grammar is not for. Each job is done
    within ``timeout_s`` of processor time and ``memory_bytes``.
    ``cache_bytes``: the size of the cache, which contains refusals as well. Thread-safe.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        backends: Sequence[str] = BACKENDS,
        limits: Limits | None = None,
        num_workers: int = 1,
        timeout_s: float = 1.0,
        memory_bytes: int = 64 << 20,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.backends = list(backends)
        self._limits = limits or Limits()
        self._in_process = num_workers == 0
        self._loaded, self._loading = Backends(vocabulary), threading.Lock()
        """The backends of this process, if it is one that loads any."""
        num_workers = max(1, num_workers)
        self._pools = {
            backend: WorkerPool(
                vocabulary,
                backends=self.backends,
                backend=backend,
                limits=self._limits,
                num_workers=num_workers,
                timeout_s=timeout_s,
                memory_bytes=memory_bytes,
            )
            for backend in self.backends
        }
        self._pool = self._pools[self.backends[0]]
        """Plans all grammars."""
        self._threads = {
            backend: ThreadPoolExecutor(num_workers, thread_name_prefix=f"grammar-{backend}")
            for backend in self.backends
        }
        self._first = self._threads[self.backends[0]]
        self._cache: ByteLRU[GrammarSpec, Result | GrammarError] = ByteLRU(cache_bytes)
        self._pending: dict[GrammarSpec, Future[Result]] = {}
        self._not_begun: set[GrammarSpec] = set()
        """Of those pending, the ones whose job waits in one lane or more."""
        self._lanes: dict[str, deque[_Job]] = {}
        self._lock = threading.Lock()

    @property
    def cache_bytes(self) -> int:
        """The bytes in the cache."""
        return self._cache.num_bytes

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for pool in self._pools.values() for pid in pool.pids]

    def start(self) -> Future[None]:
        """Start a worker in the background, so that the first request need not wait for it, and an
        operator sees at once if none starts."""
        future = self._first.submit(self._start)
        future.add_done_callback(_warn)
        return future

    def submit(self, spec: GrammarSpec, *, lane: str | None = None) -> Future[Result]:
        """A future of the result; its exception is a ``GrammarError``. It cannot be cancelled,
        because others may wait for the same. Raises ``RuntimeError`` after ``close``.

        Of each ``lane`` one spec is worked on at a time, and lanes take turns: what one asks for,
        however much it is, delays another by one piece at most, and with two workers not at all.
        What waits in one lane and is asked for in another waits in both, for the sooner turn. None
        waits for none but free workers.
        """
        with self._lock:
            future = self._pending.get(spec)
            if future is not None:
                if lane is not None and spec in self._not_begun:
                    self._enqueue(lane, partial(self._finish, spec, future))
                return future
            future = Future()
            future.set_running_or_notify_cancel()
            known = self._cache.get(spec)
            if known is None:
                job = partial(self._finish, spec, future)
                if lane is None:
                    self._first.submit(job, _nothing)  # raises after ``close``
                else:
                    self._enqueue(lane, job)
                self._pending[spec] = future
                self._not_begun.add(spec)
        if isinstance(known, GrammarError):
            future.set_exception(type(known)(*known.args))
        elif known is not None:
            future.set_result(known)
        return future

    def validate(self, spec: GrammarSpec, text: str) -> Report:
        """Check a finished document in a worker, as ``grammar.validation.validate``. Blocks.

        Raises ``CompileFailed`` if that is not possible within the limits.
        """
        return self._pool.validate(spec, text)

    def submit_validation(self, spec: GrammarSpec, text: str) -> Future[Report]:
        """A future of ``validate``."""
        return self._first.submit(self.validate, spec, text)

    def close(self) -> None:
        """Stop the workers; jobs under way fail. Idempotent."""
        for pool in self._pools.values():
            pool.close()
        for threads in self._threads.values():
            threads.shutdown()

    def _start(self) -> None:
        self._pool.start()

    def _enqueue(self, lane: str, job: _Job) -> None:
        """Under the lock. Raises ``RuntimeError`` after ``close``."""
        if lane in self._lanes:
            self._lanes[lane].append(job)
            return
        self._first.submit(self._take_turn, lane)
        self._lanes[lane] = deque([job])

    def _take_turn(self, lane: str) -> None:
        """Do the first job of a lane, which then goes to the end of the queue."""
        with self._lock:
            job = self._lanes[lane].popleft()
        job(partial(self._end_turn, lane))

    def _end_turn(self, lane: str) -> None:
        with self._lock:
            if not self._lanes[lane]:
                del self._lanes[lane]
                return
            try:
                self._first.submit(self._take_turn, lane)
                return
            except RuntimeError:  # It is closed, so that all that is left fails at once.
                left = self._lanes.pop(lane)
        for job in left:
            job(_nothing)

    @abstractmethod
    def _run(self, job: CompileJob, backend: str) -> Result | Elsewhere:
        """Do a job with the workers of a backend, unless it is another one's. Raises
        ``GrammarError``."""

    _leaves_light = False
    """Whether ``_run`` compiles light grammars in this process."""

    @abstractmethod
    def _size(self, result: Result) -> int:
        """The bytes of memory that a result takes in the cache."""

    def _finish(self, spec: GrammarSpec, future: Future[Result], then: Callable[[], None]) -> None:
        with self._lock:
            is_mine = self._pending.get(spec) is future and spec in self._not_begun
            self._not_begun.discard(spec)
        if not is_mine:  # Its turn in another lane came before.
            then()
            return
        self._work(CompileJob(spec, self._leaves_light), self.backends[0], future, then)

    def _work(
        self, job: CompileJob, backend: str, future: Future[Result], then: Callable[[], None]
    ) -> None:
        """Do a job on a thread of a backend; if it is another one's, on a thread of that."""
        spec = job.spec
        try:
            result = self._run(job, backend)
            if isinstance(result, Elsewhere):
                threads = self._threads[result.backend]
                try:
                    threads.submit(self._work, result.job, result.backend, future, then)
                    return
                except RuntimeError:
                    raise CompileFailed("the grammar compiler was closed") from None
        except GrammarError as error:
            is_final = not isinstance(error, CompileFailed | CompilerUnavailable)
            ttl_s = float("inf") if is_final else _FAILURE_TTL_S
            self._settle(spec, error, 0, ttl_s)
            future.set_exception(error)
        except BaseException as error:  # the thread's edge: nobody else would see it
            with self._lock:
                del self._pending[spec]
            future.set_exception(error)
        else:
            self._settle(spec, result, self._size(result), float("inf"))
            future.set_result(result)
        then()

    def _settle(
        self, spec: GrammarSpec, value: Result | GrammarError, size: int, ttl_s: float
    ) -> None:
        with self._lock:
            self._cache.put(spec, value, size + len(spec.source) + _ENTRY_BYTES, ttl_s=ttl_s)
            del self._pending[spec]


def _nothing() -> None:
    """After a job of no lane."""


def _warn(started: Future[None]) -> None:
    error = None if started.cancelled() else started.exception()
    if isinstance(error, CompilerUnavailable):
        logger.error("%s", error)


class Verdict(NamedTuple):
    """The result of checking a grammar."""

    backend: str
    unenforced: tuple[Finding, ...]
    """What outputs may still violate; empty for a strict grammar."""
    size: int
    """Characters of the grammar as the backend gets it, with all that it combines written out."""


class GrammarChecker(_Service[Verdict]):
    """Checks whether grammars compile, without loading a backend into this process, because some
    import torch. For a gateway, which must refuse what its engine would refuse."""

    def check(self, spec: GrammarSpec) -> Verdict:
        """Blocks. Raises ``GrammarError``."""
        return self.submit(spec).result()

    def _run(self, job: CompileJob, backend: str) -> Verdict | Elsewhere:
        compiled = self._pools[backend].compile(job)
        if isinstance(compiled, Elsewhere):
            return compiled
        return Verdict(compiled.backend, compiled.unenforced, len(compiled.spec.source))

    def _size(self, result: Verdict) -> int:
        return 500 * len(result.unenforced)


class CompiledGrammar:
    """A compiled grammar, for any number of outputs."""

    def __init__(
        self,
        spec: GrammarSpec,
        backend: str,
        unenforced: tuple[Finding, ...],
        grammar: BackendGrammar,
        vocabulary: Vocabulary,
    ) -> None:
        self.spec = spec
        """The spec as the caller wrote it."""
        self.backend = backend
        self.unenforced = unenforced
        """What outputs may still violate; empty for a strict grammar."""
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._allowed = allowed_tokens(spec, vocabulary)

    @property
    def memory_bytes(self) -> int:
        return self._grammar.memory_bytes

    def matcher(self) -> Matcher:
        """A matcher at the start of an output."""
        return Matcher(self._grammar.matcher(), self._vocabulary, self._allowed)


class GrammarCompiler(_Service[CompiledGrammar]):
    """Compiles grammars for the outputs of this process. With ``num_workers`` 0 this process does
    all the work, without limits on time and memory: for tests and trusted callers."""

    _leaves_light = True

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Blocks. Raises ``GrammarError``."""
        return self.submit(spec).result()

    def _start(self) -> None:
        self._load(self.backends[0])
        self._compiler().warm_up()
        if not self._in_process:
            super()._start()

    def _run(self, job: CompileJob, backend: str) -> CompiledGrammar | Elsewhere:
        """Load what a worker has compiled. Grammars that it found to be light are compiled here, so
        that the work is not done twice."""
        if self._in_process:
            candidate, grammar = self._compiler().compile(job.spec)
            assert grammar is not None
            return self._made(job.spec, candidate, grammar)
        compiled = self._pools[backend].compile(job)
        if isinstance(compiled, Elsewhere):
            return compiled
        if compiled.data is None:
            allowed = allowed_tokens(job.spec, self.vocabulary)
            try:
                grammar = self._compiler().build(compiled.backend, compiled.spec, allowed)
            except InvalidGrammar:  # A worker says why, or finds another backend.
                return Elsewhere(compiled.backend, msgspec.structs.replace(job, leave_light=False))
        else:
            grammar = self._load(compiled.backend).load(compiled.spec, compiled.data)
        return self._made(job.spec, compiled, grammar)

    def _made(
        self, spec: GrammarSpec, found: Candidate | Compiled, grammar: BackendGrammar
    ) -> CompiledGrammar:
        return CompiledGrammar(spec, found.backend, found.unenforced, grammar, self.vocabulary)

    def _size(self, result: CompiledGrammar) -> int:
        return result.memory_bytes

    def _compiler(self) -> Compiler:
        """A compiler for one use, so that threads can compile at the same time."""
        return Compiler(self.vocabulary, self.backends, self._limits, self._load)

    def _load(self, name: str) -> Backend:
        with self._loading:
            return self._loaded.load(name)
