"""From a spec to a compiled grammar: by the best backend, in a process that may be killed, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from grammar.audit import BACKENDS
from grammar.backends.base import Backend, BackendGrammar
from grammar.cache import ByteLRU
from grammar.errors import CompileFailed, GrammarError
from grammar.jobs import Backends, Compiler
from grammar.matcher import Matcher
from grammar.plan import Candidate
from grammar.pool import WorkerPool
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report
from grammar.validation import validate as validate_here
from grammar.vocabulary import Vocabulary

# A failure for want of time or memory may be the machine's fault as much as the grammar's.
_FAILURE_TTL_S = 60.0
_ENTRY_BYTES = 1_000  # of the cache itself, besides what an entry holds


class CompiledGrammar:
    """A grammar ready for any number of outputs."""

    def __init__(
        self,
        spec: GrammarSpec,
        backend: str,
        unenforced: tuple[Finding, ...],
        grammar: BackendGrammar,
        vocabulary: Vocabulary,
    ) -> None:
        self.spec = spec
        """As the caller wrote it."""
        self.backend = backend
        self.unenforced = unenforced
        """What outputs may violate all the same; empty for a strict grammar."""
        self._grammar = grammar
        self._vocabulary = vocabulary

    @property
    def memory_bytes(self) -> int:
        return self._grammar.memory_bytes

    def matcher(self) -> Matcher:
        """A matcher at the start of an output."""
        return Matcher(self._grammar.matcher(), self._vocabulary)


class GrammarCompiler:
    """Compiles specs for one vocabulary. Thread-safe.

    ``backends`` are tried in this order among those that enforce a grammar equally well.
    ``num_workers`` processes compile, each job within ``timeout_s`` and ``memory_bytes``; with 0 of
    them this process does, without those two limits. ``cache_bytes`` bounds what is kept, refusals
    included.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        backends: Sequence[str] = BACKENDS,
        limits: Limits | None = None,
        num_workers: int = 1,
        timeout_s: float = 5.0,
        memory_bytes: int = 1 << 30,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.backends = list(backends)
        self._limits = limits or Limits()
        self._loaded = Backends(vocabulary)
        self._loading = threading.Lock()
        self._compiler = Compiler(vocabulary, self.backends, self._limits, self._loaded.load)
        self._pool = (
            WorkerPool(
                vocabulary,
                backends=backends,
                limits=self._limits,
                num_workers=num_workers,
                timeout_s=timeout_s,
                memory_bytes=memory_bytes,
            )
            if num_workers
            else None
        )
        self._threads = ThreadPoolExecutor(max(1, num_workers), thread_name_prefix="grammar")
        self._cache: ByteLRU[GrammarSpec, CompiledGrammar | GrammarError] = ByteLRU(cache_bytes)
        self._pending: dict[GrammarSpec, Future[CompiledGrammar]] = {}
        self._lock = threading.Lock()

    @property
    def cache_bytes(self) -> int:
        """What the cache holds now."""
        return self._cache.num_bytes

    def start(self) -> None:
        """Loads the preferred backend and starts a worker, so that the first request need not
        wait. Blocks, for up to seconds."""
        self._load(self.backends[0])
        if self._pool is not None:
            self._pool.start()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Blocks until compiled. Raises ``GrammarError``."""
        return self.submit(spec).result()

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """Compiles in the background, once for all who ask for the same."""
        with self._lock:
            future = self._pending.get(spec)
            if future is not None:
                return future
            future = Future()
            future.set_running_or_notify_cancel()  # it is shared: nobody may cancel it
            known = self._cache.get(spec)
            if known is None:
                self._pending[spec] = future
                self._threads.submit(self._finish, spec, future)
        if isinstance(known, CompiledGrammar):
            future.set_result(known)
        elif known is not None:
            future.set_exception(type(known)(*known.args))
        return future

    def validate(self, spec: GrammarSpec, text: str) -> Report:
        """Checks a finished document; see ``grammar.validation.validate``. Blocks."""
        if self._pool is None:
            return validate_here(spec, text)
        return self._pool.validate(spec, text)

    def close(self) -> None:
        """Ends the workers; what is being compiled fails. Idempotent."""
        if self._pool is not None:
            self._pool.close()
        self._threads.shutdown()

    def _finish(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        try:
            compiled = self._compile(spec)
        except GrammarError as error:
            ttl_s = _FAILURE_TTL_S if isinstance(error, CompileFailed) else float("inf")
            self._settle(spec, error, len(spec.source), ttl_s)
            future.set_exception(error)
        except BaseException as error:  # the thread's edge: nobody else would hear of it
            with self._lock:
                del self._pending[spec]
            future.set_exception(error)
        else:
            self._settle(spec, compiled, len(spec.source) + compiled.memory_bytes, float("inf"))
            future.set_result(compiled)

    def _settle(
        self, spec: GrammarSpec, value: CompiledGrammar | GrammarError, size: int, ttl_s: float
    ) -> None:
        with self._lock:
            self._cache.put(spec, value, size + _ENTRY_BYTES, ttl_s=ttl_s)
            del self._pending[spec]

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if self._pool is None:
            with self._loading:
                candidate, grammar = self._compiler.compile(spec)
        else:
            answer = self._pool.compile(spec)
            candidate = Candidate(answer.backend, answer.spec, answer.unenforced)
            grammar = self._load(answer.backend).load(answer.spec, answer.data)
        return CompiledGrammar(
            spec, candidate.backend, candidate.unenforced, grammar, self.vocabulary
        )

    def _load(self, name: str) -> Backend:
        with self._loading:
            return self._loaded.load(name)
