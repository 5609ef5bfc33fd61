"""The grammars of constrained requests: compiled in the background, advanced token by token."""

from __future__ import annotations

import json
import logging
import os
import queue
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InvalidRequest
from engine.scheduler.plan import TokenMask
from grammar.errors import CompilerUnavailable, GrammarError, MatcherFailed
from grammar.matcher import MaskFiller, MaskJob
from grammar.reasoning import ReasoningMatcher
from grammar.spec import GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from engine.messages import FinishReason
    from engine.request import Request
    from engine.sampling_params import StructuredOutputs
    from grammar.compiler import CompiledGrammar, GrammarCompiler
    from grammar.matcher import TokenMatcher
    from grammar.spec import Kind


def grammar_spec(outputs: StructuredOutputs) -> GrammarSpec:
    """Raises ``InvalidRequest`` unless exactly one kind of grammar is set."""
    sources: dict[Kind, str | None] = {
        "json_schema": outputs.json,
        "json_object": "" if outputs.json_object else None,
        "regex": outputs.regex,
        "choice": None if outputs.choice is None else json.dumps(outputs.choice),
        "ebnf": outputs.grammar,
        "structural_tag": outputs.structural_tag,
    }
    specs = [
        GrammarSpec(kind, source, outputs.strict, not outputs.disable_any_whitespace)
        for kind, source in sources.items()
        if source is not None
    ]
    if len(specs) != 1:
        raise InvalidRequest(
            f"structured_outputs must have exactly one field set, got {len(specs)}"
        )
    return specs[0]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that has to end because of its grammar."""

    request: Request
    reason: FinishReason
    error: str | None = None
    error_code: str | None = None
    """As in ``RequestOutput``."""


class Constraints:
    """Owns the matcher of every constrained request from ``begin`` to ``drop``."""

    def __init__(self, compiler: GrammarCompiler | None, vocab_size: int) -> None:
        assert compiler is None or compiler.vocabulary.size == vocab_size, (
            "the grammar's vocabulary does not have the width of the logits"
        )
        self._compiler = compiler
        self._num_words = -(-vocab_size // 32)
        self._filler = MaskFiller(_num_mask_threads())
        self._compiling: dict[Request, Future[CompiledGrammar]] = {}
        self._compiled: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._matchers: dict[Request, TokenMatcher] = {}
        # Ids that the sampler withholds while a request has fewer than min_tokens, as a mask.
        self._withheld: dict[Request, npt.NDArray[np.int32]] = {}
        self._allowed: dict[Request, npt.NDArray[np.int32]] = {}
        self._unenforced: dict[Request, list[tuple[str, str]]] = {}

    @property
    def num_compiling(self) -> int:
        return len(self._compiling)

    @property
    def is_idle(self) -> bool:
        """Whether no request has anything here."""
        return not (
            self._compiling or self._matchers or self._withheld or self._allowed or self._unenforced
        )

    def unenforced(self, request: Request) -> list[tuple[str, str]] | None:
        """(keyword, path) of what the request's schema asks for and nothing enforces; None if there
        is nothing."""
        return self._unenforced.get(request)

    def begin(self, request: Request) -> None:
        """Start compiling the request's grammar. ``compiled`` returns the request when that is
        done."""
        outputs = request.params.structured_outputs
        assert outputs is not None
        if self._compiler is None:
            raise InvalidRequest(
                "structured_outputs needs a tokenizer, but the engine runs without one"
            )
        try:
            future = self._compiler.submit(grammar_spec(outputs), lane=request.fair_key)
        except GrammarError as error:
            raise InvalidRequest(f"structured_outputs: {error}") from error
        self._compiling[request] = future
        future.add_done_callback(lambda _: self._compiled.put(request))

    def compiled(self, *, wait_s: float = 0.0) -> list[tuple[Request, Ending | None]]:
        """Requests whose grammar is ready, each with an ending if it did not compile.

        Waits up to ``wait_s`` for the first one if there is none yet but some compile.
        """
        done: list[tuple[Request, Ending | None]] = []
        while True:
            try:
                wait = wait_s > 0 and bool(self._compiling) and not done
                request = self._compiled.get(wait, wait_s if wait else None)
            except queue.Empty:
                return done
            future = self._compiling.pop(request, None)
            if future is not None:
                done.append((request, self._start(request, future)))

    def _start(self, request: Request, future: Future[CompiledGrammar]) -> Ending | None:
        try:
            grammar = future.result()
            self._matchers[request] = self._matcher(request, grammar)
        except CompilerUnavailable as error:
            return _failure(request, error, "internal")
        except GrammarError as error:
            return _failure(request, error, "invalid_request")
        except Exception as error:  # Another process compiled it: whatever befell that, we go on.
            logger.exception("a grammar was not compiled", extra={"action": "compile_grammar"})
            return _failure(request, error, "internal")
        if grammar.unenforced:
            self._unenforced[request] = [(f.keyword, f.path) for f in grammar.unenforced]
        if request.params.min_tokens > 0:
            self._withheld[request] = _bitmask(request.stop_token_ids, self._num_words)
        if request.params.allowed_token_ids is not None:
            assert self._compiler is not None
            # As ``engine.sampling.processors.AllowedTokens`` has it: the grammar decides about EOS.
            eos = self._compiler.vocabulary.eos_token_ids
            allowed = eos.union(request.params.allowed_token_ids)
            self._allowed[request] = _bitmask(allowed, self._num_words)
        return self.accept(request, request.token_ids[request.num_prompt_tokens :])

    def _matcher(self, request: Request, grammar: CompiledGrammar) -> TokenMatcher:
        outputs = request.params.structured_outputs
        assert outputs is not None
        assert self._compiler is not None
        if not outputs.reasoning_end_token_ids:
            return grammar.matcher()
        return ReasoningMatcher(
            grammar.matcher(), self._compiler.vocabulary, outputs.reasoning_end_token_ids
        )

    def drop(self, request: Request) -> None:
        """Forget a request, whatever its state; unknown ones are ignored."""
        future = self._compiling.pop(request, None)
        if future is not None:
            future.cancel()
        self._matchers.pop(request, None)
        self._withheld.pop(request, None)
        self._allowed.pop(request, None)
        self._unenforced.pop(request, None)

    def accept(self, request: Request, token_ids: Sequence[int]) -> Ending | None:
        """Advance the request's grammar by the tokens it took; an ``Ending`` if the grammar ends
        it."""
        matcher = self._matchers[request]
        try:
            for token_id in token_ids:
                if not matcher.accept(token_id):
                    matcher.fill_mask(np.empty(self._num_words, np.int32))  # raises at a limit
                    message = f"the grammar refuses the sampled id {token_id}"
                    return Ending(request, "error", message, "internal")
        except MatcherFailed as error:
            return _failure(request, error, "invalid_request")
        return Ending(request, "stop") if matcher.is_terminated else None

    # ---- drafts ---------------------------------------------------------------------------------

    def forced_tokens(self, request: Request) -> list[int]:
        """The tokens that the grammar leaves no choice about, tokenized in one of the possible
        ways."""
        if request in self._allowed or self._must_not_end(request):
            return []
        try:
            return self._matchers[request].forced_tokens()
        except MatcherFailed:  # which its next mask reports
            return []

    def legal_prefix(self, request: Request, token_ids: list[int]) -> list[int]:
        """The leading drafts that the grammar allows; one that would end it is left out."""
        if not token_ids or request in self._allowed or self._must_not_end(request):
            return []
        try:
            legal = self._matchers[request].legal_prefix(token_ids)
        except MatcherFailed:  # which its next mask reports
            return []
        assert self._compiler is not None
        if legal and legal[-1] in self._compiler.vocabulary.eos_token_ids:
            # If it is right it is sampled anyway, and nothing can be sampled after it.
            legal.pop()
        return legal

    def _must_not_end(self, request: Request) -> bool:
        """Before ``min_tokens`` only the mask can tell whether the grammar has to end."""
        short = request.num_generated_tokens < request.params.min_tokens
        return short and request in self._withheld

    # ---- masks ----------------------------------------------------------------------------------

    def mask(
        self, rows: Iterable[tuple[int, Request, Sequence[int]]]
    ) -> tuple[TokenMask | None, list[Ending]]:
        """Allowed tokens for the rows (chunk index, request, its legal drafts) whose requests still
        run: one mask for each place that is sampled.

        Rows whose grammar leaves no token to sample have no mask but an ending.
        """
        live = [row for row in rows if not row[1].finished]
        stops = list(accumulate((len(drafts) + 1 for _, _, drafts in live), initial=0))
        bitmask = np.empty((stops[-1], self._num_words), np.int32)
        jobs = [
            MaskJob(self._matchers[request], drafts, start)
            for (_, request, drafts), start in zip(live, stops, strict=False)
        ]
        failures = self._filler.fill(jobs, bitmask)
        indices: list[int] = []
        endings: list[Ending] = []
        left_out: list[int] = []
        for place, (index, request, drafts) in enumerate(live):
            failure = failures.get(place)
            if failure is None:
                ending = self._ending(request, bitmask[stops[place]])
            else:
                ending = _failure(request, failure, "invalid_request")
            if ending is None:
                indices += [index] * (len(drafts) + 1)
            else:
                endings.append(ending)
                left_out += range(stops[place], stops[place + 1])
        if left_out:
            bitmask = np.delete(bitmask, left_out, axis=0)
        return (TokenMask(indices, bitmask) if indices else None), endings

    def _ending(self, request: Request, left: npt.NDArray[np.int32]) -> Ending | None:
        """The ending of a request whose mask leaves only tokens that the sampler withholds."""
        if request in self._allowed:
            left = left & self._allowed[request]
            if not left.any():
                return _contradiction(request)
        if self._must_not_end(request) and not (left & ~self._withheld[request]).any():
            # The grammar has to end before min_tokens. Its promise is the stronger one.
            return Ending(request, "stop")
        return None


def _contradiction(request: Request) -> Ending:
    """An error: sampling from an empty mask would yield some token, maybe EOS, as if the answer
    were complete."""
    message = "structured_outputs and allowed_token_ids have no token in common here"
    return Ending(request, "error", message, "invalid_request")


def _failure(request: Request, error: Exception, code: str) -> Ending:
    return Ending(request, "error", f"structured_outputs: {error}", code)


def _num_mask_threads() -> int:
    """Threads for filling masks: leaves processors to the step loop and to the gateway."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 4))


def _bitmask(token_ids: Iterable[int], num_words: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(num_words * 32, np.uint8)
    bits[[token_id for token_id in token_ids if token_id < bits.size]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
