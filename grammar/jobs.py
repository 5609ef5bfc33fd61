"""The messages to and from fork servers and their workers, and the work itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
import numpy as np

from grammar import contradiction, errors, libraries, structural_tag
from grammar.backends.base import Backend, BackendGrammar
from grammar.costliest import costliest
from grammar.errors import (
    CompileFailed,
    DeadEnd,
    GrammarError,
    GrammarTooLarge,
    InvalidGrammar,
    MatcherFailed,
    Unsatisfiable,
)
from grammar.matcher import Matcher
from grammar.plan import Candidate, plan
from grammar.schema.document import Schema
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report, validate
from grammar.vocabulary import Mask, Vocabulary


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """The first message to a fork server. Without tokens its workers can only validate."""

    tokens: list[bytes]
    eos_token_ids: list[int]
    special_ids: list[int]
    size: int
    backends: list[str]
    """All that may compile a grammar, in order of preference."""
    backend: str
    """The one that its workers have, and the only one."""
    limits: Limits
    timeout_s: float
    memory_bytes: int


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """To a fork server: fork a worker for the socket that follows."""


class Reap(msgspec.Struct, frozen=True, tag="reap"):
    """To a fork server: end one of its workers."""

    pid: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A ``GrammarError``, by name and arguments."""

    error: str
    arguments: list[str | int | float]

    @classmethod
    def of(cls, error: GrammarError) -> Refused:
        return cls(type(error).__name__, list(error.args))

    def exception(self) -> GrammarError:
        error: GrammarError = getattr(errors, self.error)(*self.arguments)
        return error


class CompileJob(msgspec.Struct, frozen=True, tag="compile"):
    """Compile this spec, with the best backend."""

    spec: GrammarSpec
    leave_light: bool
    """Whether light grammars are left to the process that asks."""
    tried: list[str] = []
    """The backends that have refused it."""
    refusal: Refused | None = None
    """Of the first of those."""


class BlameJob(msgspec.Struct, frozen=True, tag="blame"):
    """Say which keyword of this spec most likely took too much."""

    spec: GrammarSpec


class ValidateJob(msgspec.Struct, frozen=True, tag="validate"):
    """Check whether a text satisfies the schema."""

    spec: GrammarSpec
    text: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """From a fork server: it is ready to fork workers."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """From a fork server: a worker, which is ready for jobs."""

    pid: int


class Reaped(msgspec.Struct, frozen=True, tag="reaped"):
    """From a fork server: what had ended the worker before."""

    signal: int
    """0 if nothing had."""


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """From a worker: what ``Backend.load`` needs."""

    backend: str
    spec: GrammarSpec
    """The spec as the backend gets it."""
    data: bytes | None
    """None for a light grammar that is left to ``Compiler.build``."""
    unenforced: tuple[Finding, ...]


class Elsewhere(msgspec.Struct, frozen=True, tag="elsewhere"):
    """From a worker: the best backend is another one. Its workers can do the job as given here."""

    backend: str
    job: CompileJob


class Blamed(msgspec.Struct, frozen=True, tag="blamed"):
    """From a worker: the path of a keyword; the root's for none."""

    path: str


class Validated(msgspec.Struct, frozen=True, tag="validated"):
    """From a worker: the result of a ``ValidateJob``."""

    report: Report


Job = CompileJob | ValidateJob | BlameJob
Result = Compiled | Elsewhere | Validated | Blamed
Request = Setup | Fork | Reap | Job
Reply = Loaded | Forked | Reaped | Result | Refused

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    return _request_decoder.decode(data)


def decode_reply(data: bytes) -> Reply:
    return _reply_decoder.decode(data)


class Backends:
    """The backends of one vocabulary, each loaded when it is first needed: an import can take
    seconds, and a tokenizer of 128k entries some tenths of a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._loaded: dict[str, Backend] = {}

    def load(self, name: str) -> Backend:
        """A loaded backend. Raises ``CompilerUnavailable``."""
        if name not in self._loaded:
            self._loaded[name] = libraries.adapter(name)(self._vocabulary)
        return self._loaded[name]


def allowed_tokens(spec: GrammarSpec, vocabulary: Vocabulary) -> Mask | None:
    """The special tokens that ``spec`` may generate besides text; None for none.

    Raises ``InvalidGrammar`` at a token that the vocabulary does not have, or that ends the output.
    """
    if spec.kind != "structural_tag":
        return None
    tokens = list(structural_tag.tokens(structural_tag.parse(spec.document())))
    for token in tokens:
        if token.id in vocabulary.eos_token_ids:
            raise InvalidGrammar(token.path, f"the token {token.id} ends the output")
        if not vocabulary.has(token.id):
            raise InvalidGrammar(token.path, f"there is no token {token.id}")
    if not tokens:
        return None
    found: Mask = vocabulary.text_mask | vocabulary.mask(token.id for token in tokens)
    return found


class Outcome(NamedTuple):
    candidate: Candidate
    grammar: BackendGrammar | None
    """None for a light grammar that was not compiled."""


class _NotHere(Exception):
    """The best backend is another process's."""

    def __init__(self, backend: str, tried: list[str], refusal: GrammarError | None) -> None:
        super().__init__(backend)
        self.backend, self.tried, self.refusal = backend, tried, refusal


_TRIAL_STEPS = 4


class Compiler:
    """Compiles in the calling thread, with no limits but those on the source."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backends: list[str],
        limits: Limits,
        load: Callable[[str], Backend],
        here: Collection[str] | None = None,
    ) -> None:
        """here: the backends that this process may load; by default all."""
        self._backends = backends
        self._here = backends if here is None else here
        self._limits = limits
        self._load = load
        self._vocabulary = vocabulary
        self._row = np.zeros(vocabulary.mask_words, dtype=np.int32)

    def compile(self, spec: GrammarSpec) -> Outcome:
        """Compile a spec with the best backend that takes it. Raises ``GrammarError``."""
        return self._compile(CompileJob(spec, leave_light=False))

    def do(self, job: CompileJob) -> Compiled | Elsewhere:
        """As ``compile``, unless the best backend is not here. Raises ``GrammarError``."""
        try:
            candidate, grammar = self._compile(job)
        except _NotHere as to:
            refusal = None if to.refusal is None else Refused.of(to.refusal)
            return Elsewhere(to.backend, CompileJob(job.spec, job.leave_light, to.tried, refusal))
        data = None if grammar is None else grammar.dump()
        return Compiled(candidate.backend, candidate.spec, data, candidate.unenforced)

    def _compile(self, job: CompileJob) -> Outcome:
        spec, tried = job.spec, list(job.tried)
        spec.validate(self._limits)
        allowed = allowed_tokens(spec, self._vocabulary)
        refusal = None if job.refusal is None else job.refusal.exception()
        for candidate in plan(spec, self._backends):
            if candidate.backend in tried:
                continue
            if job.leave_light and candidate.is_light:
                return Outcome(candidate, None)
            if candidate.backend not in self._here:
                raise _NotHere(candidate.backend, tried, refusal)
            try:
                grammar = self.build(candidate.backend, candidate.spec, allowed)
            except Unsatisfiable as error:
                raise self._located(error, candidate) from None
            except GrammarTooLarge:  # Another backend would spend the same once more.
                raise
            except InvalidGrammar as error:
                refusal = refusal or error
                tried.append(candidate.backend)
            else:
                return Outcome(candidate, grammar)
        assert refusal is not None
        raise refusal

    def warm_up(self) -> None:
        """Do the one-time work that the first grammar would otherwise wait for."""
        spec = GrammarSpec.from_schema({"type": "boolean"})
        with contextlib.suppress(InvalidGrammar):  # if the vocabulary cannot spell it
            self.build(next(iter(self._here)), spec, None)

    def build(self, backend: str, spec: GrammarSpec, allowed: Mask | None) -> BackendGrammar:
        """Compile what was planned, and try it out. Raises ``InvalidGrammar``."""
        grammar = self._load(backend).compile(spec)
        self._try_out(Matcher(grammar.matcher(), self._vocabulary, allowed))
        return grammar

    def _located(self, error: Unsatisfiable, candidate: Candidate) -> Unsatisfiable:
        spec = candidate.spec
        document = spec.document() if spec.kind == "json_schema" else None
        if not isinstance(document, dict):
            return error

        def compile_(part: Schema) -> None:
            if part is False:
                raise Unsatisfiable("$", "nothing can satisfy the schema")
            try:
                self.build(candidate.backend, GrammarSpec.from_schema(part), None)
            except Unsatisfiable:
                raise
            except InvalidGrammar:
                return  # whatever it is, it is no contradiction

        return contradiction.locate(document, error, compile_)

    def _try_out(self, matcher: Matcher) -> None:
        """Take the first steps of an output, in which backends do work that compiling has put off.
        So some grammars are refused now that would fail later."""
        try:
            for _ in range(_TRIAL_STEPS):
                matcher.forced_tokens()
                matcher.fill_mask(self._row)
                if matcher.num_tokens == 0 and not (self._row & ~self._vocabulary.eos_mask).any():
                    raise InvalidGrammar("$", "it admits nothing but an empty output")
                if not matcher.accept(self._first_allowed()):
                    raise MatcherFailed("it takes too much to follow")
                if matcher.is_terminated:
                    return
        except DeadEnd:
            if matcher.num_tokens == 0:
                raise Unsatisfiable("$", "no output can satisfy it") from None
            return  # that way; there may be others
        except MatcherFailed as error:
            raise GrammarTooLarge("$", str(error)) from None

    def _first_allowed(self) -> int:
        """The first token of the row that is not blank; a blank one if there is no other."""
        solid = self._row & self._vocabulary.solid_mask
        row = solid if solid.any() else self._row
        word = int(np.flatnonzero(row)[0])
        bits = int(row[word]) & 0xFFFFFFFF
        return word * 32 + (bits & -bits).bit_length() - 1


def run(job: Job, compiler: Compiler | None) -> Result:
    """Do a job. Raises ``GrammarError``."""
    if isinstance(job, ValidateJob):
        return Validated(validate(job.spec, job.text))
    if isinstance(job, BlameJob):
        return Blamed(costliest(job.spec))
    if compiler is None:
        raise CompileFailed("the model has no token that ends a text, on which an output could end")
    return compiler.do(job)
