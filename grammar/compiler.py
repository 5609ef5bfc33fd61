"""From a spec to a compiled grammar."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from grammar.backends.base import BackendGrammar
from grammar.backends.llguidance import LLGuidanceBackend
from grammar.matcher import Matcher
from grammar.spec import GrammarSpec, Limits
from grammar.vocabulary import Vocabulary


class CompiledGrammar:
    """A grammar ready for any number of outputs."""

    def __init__(
        self, spec: GrammarSpec, backend: str, grammar: BackendGrammar, vocabulary: Vocabulary
    ) -> None:
        self.spec = spec
        self.backend = backend
        self._grammar = grammar
        self._vocabulary = vocabulary

    @property
    def memory_bytes(self) -> int:
        return self._grammar.memory_bytes

    def matcher(self) -> Matcher:
        """A matcher at the start of an output."""
        return Matcher(self._grammar.matcher(), self._vocabulary)


class GrammarCompiler:
    """Compiles specs for one vocabulary; thread-safe."""

    def __init__(
        self, vocabulary: Vocabulary, *, limits: Limits | None = None, cache_size: int = 256
    ) -> None:
        self.vocabulary = vocabulary
        self._limits = limits or Limits()
        self._backend = LLGuidanceBackend(vocabulary)
        self._cached = lru_cache(cache_size)(self._compile)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Blocks until compiled. Raises ``GrammarError``."""
        return self._cached(spec)

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        return self._threads.submit(self.compile, spec)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        spec.validate(self._limits)
        return CompiledGrammar(
            spec, self._backend.name, self._backend.compile(spec), self.vocabulary
        )
