"""What the offline API returns, shaped as in vLLM, and how it grows step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import msgspec

from engine.messages import AdapterRef, FinishReason, Image, RequestOutput, TokenLogprobs
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.text.detokenize import Detokenizer
from engine.text.tokenizer import Tokenizer
from grammar.spec import GrammarSpec
from grammar.validation import Violation, validate

T = TypeVar("T")


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """How likely the model found a token at its place."""

    logprob: float
    rank: int
    """1 for the likeliest token."""
    decoded_token: str | None
    """The token by itself; None with ``skip_tokenizer_init``."""


@dataclass(frozen=True, slots=True)
class Compliance:
    """The result of checking an output against a schema that could not be enforced completely."""

    unenforced: list[tuple[str, str]]
    """(keyword, path in the schema) of what was not enforced."""
    valid: bool | None
    """Whether the document satisfies the schema nevertheless; None with ``skip_tokenizer_init``."""
    violations: tuple[Violation, ...]
    """The first ten violations."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    """Its number in [0, n)."""
    text: str
    """``""`` with ``skip_tokenizer_init``."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for the model's own EOS."""
    logprobs: list[dict[int, Logprob]] | None = None
    """If asked for: at the place of each of ``token_ids``, that token and the likeliest ones."""
    cumulative_logprob: float | None = None
    """Sum over all tokens so far; set together with ``logprobs``."""
    num_draft_tokens: int = 0
    """Drafted tokens that were checked so far (speculative decoding)."""
    num_accepted_tokens: int = 0
    """Of these, the right ones: part of ``token_ids``."""
    compliance: Compliance | None = None
    """At the end, where ``structured_outputs`` was not strict and not all of it was enforced."""


@dataclass(slots=True)
class GenerationOutput:
    """A prompt and its completions, shaped like vLLM's ``RequestOutput``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """All completions in a final result; in one before it, only the completion that advanced."""
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """If asked for: as ``CompletionOutput.logprobs``, for the prompt; None for its first token."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of a prompt."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class Score:
    """How well two texts go together."""

    score: float


@dataclass(frozen=True, slots=True)
class PoolingOutput(Generic[T]):
    """A prompt and its vector or score, shaped like vLLM's ``EmbeddingRequestOutput``."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    finished: bool = True


class CompletionProgress:
    """One completion while it is generated."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self.finished = False
        self._tokenizer = tokenizer
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer,
                stop=params.stop,
                include_stop_str_in_output=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                min_tokens=params.min_tokens,
            )
        self._structured = params.structured_outputs
        self._texts: list[str] = []
        self._whole = CompletionOutput(index, "", [])
        if params.logprobs is not None:
            self._whole.logprobs, self._whole.cumulative_logprob = [], 0.0

    def push(self, output: RequestOutput) -> CompletionOutput:
        """Take in an output of the engine; returns what is new."""
        delta = CompletionOutput(
            self._whole.index,
            "",
            output.new_token_ids,
            output.finish_reason,
            output.stop_reason,
            num_draft_tokens=output.num_draft_tokens,
            num_accepted_tokens=output.num_accepted_tokens,
        )
        records = output.logprobs
        if self._detokenizer is not None:
            delta.text = self._detokenizer.push_output(output)
            if self._detokenizer.stopped is not None:
                delta.finish_reason, delta.stop_reason = "stop", self._detokenizer.stopped
                num_tokens = self._detokenizer.num_tokens - len(self._whole.token_ids)
                delta.token_ids = delta.token_ids[:num_tokens]
                records = None if records is None else records[:num_tokens]
        delta.logprobs = named(records, self._tokenizer)
        if self._whole.cumulative_logprob is not None:
            self._whole.cumulative_logprob += sum(found.logprob for found in records or ())
        delta.cumulative_logprob = self._whole.cumulative_logprob
        self.finished = delta.finish_reason is not None
        self._take(delta)
        if self.finished and output.unenforced is not None:
            delta.compliance = self._whole.compliance = self._compliance(output.unenforced)
        return delta

    def _compliance(self, unenforced: list[tuple[str, str]]) -> Compliance:
        assert self._structured is not None
        if self._tokenizer is None or self._structured.json is None:
            return Compliance(unenforced, None, ())
        text = "".join(self._texts)
        if end := self._structured.reasoning_end_token_ids:
            text = self._tokenizer.decode(_after(self._whole.token_ids, list(end)))
        report = validate(GrammarSpec("json_schema", self._structured.json, strict=False), text)
        return Compliance(unenforced, report.passed, report.violations)

    def _take(self, delta: CompletionOutput) -> None:
        whole = self._whole
        self._texts.append(delta.text)
        whole.token_ids += delta.token_ids
        whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
        whole.num_draft_tokens = delta.num_draft_tokens
        whole.num_accepted_tokens = delta.num_accepted_tokens
        if whole.logprobs is not None and delta.logprobs is not None:
            whole.logprobs += delta.logprobs

    def whole(self) -> CompletionOutput:
        """A copy of the completion so far."""
        self._texts = ["".join(self._texts)]
        logprobs = self._whole.logprobs
        return replace(
            self._whole,
            text=self._texts[0],
            token_ids=list(self._whole.token_ids),
            logprobs=None if logprobs is None else list(logprobs),
        )


class GenerationProgress:
    """All completions of a prompt while they are generated."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        adapter: AdapterRef | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        self.request_id = request_id
        self.adapter = adapter
        self.images = list(images)
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._completions = [CompletionProgress(i, params, tokenizer) for i in range(params.n)]
        self._num_cached_tokens = 0
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    @property
    def finished(self) -> bool:
        return all(completion.finished for completion in self._completions)

    def push(self, index: int, output: RequestOutput) -> CompletionOutput:
        """Take in an output of the completion at ``index``; returns what is new."""
        if index == 0:
            self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        found = named(output.prompt_logprobs, self._tokenizer)
        if found is not None:
            self._prompt_logprobs = [None, *found]
        return self._completions[index].push(output)

    def is_finished(self, index: int) -> bool:
        return self._completions[index].finished

    def result(
        self, kind: RequestOutputKind, index: int, delta: CompletionOutput
    ) -> GenerationOutput | None:
        """What a reader of this kind gets for ``delta``, the latest step of one completion; None
        for nothing."""
        match kind:
            case RequestOutputKind.DELTA:
                return self._output([delta])
            case RequestOutputKind.CUMULATIVE:
                return self._output([self._completions[index].whole()])
            case RequestOutputKind.FINAL_ONLY:
                return self.final() if self.finished else None

    def final(self) -> GenerationOutput:
        return self._output([completion.whole() for completion in self._completions])

    def _output(self, completions: list[CompletionOutput]) -> GenerationOutput:
        return GenerationOutput(
            self.request_id,
            self._prompt,
            self.prompt_token_ids,
            completions,
            self.finished,
            self._num_cached_tokens,
            self._prompt_logprobs,
        )


def _after(token_ids: list[int], end: list[int]) -> list[int]:
    """The tokens after the first occurrence of ``end``."""
    for place in range(len(end), len(token_ids) + 1):
        if token_ids[place - len(end) : place] == end:
            return token_ids[place:]
    return []


def named(
    records: list[TokenLogprobs] | None, tokenizer: Tokenizer | None
) -> list[dict[int, Logprob]] | None:
    """By token id: the token itself first, then those of the likeliest that are others."""
    if records is None:
        return None
    return [_entry(record, tokenizer) for record in records]


def _entry(record: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    tokens = [(record.token_id, record.logprob, record.rank)]
    tokens += [(token_id, logprob, 1 + i) for i, (token_id, logprob) in enumerate(record.top)]
    return {
        token_id: Logprob(logprob, rank, _text(token_id, tokenizer))
        for token_id, logprob, rank in tokens
    }


def _text(token_id: int, tokenizer: Tokenizer | None) -> str | None:
    if tokenizer is None:
        return None
    return tokenizer.decode([token_id], skip_special_tokens=False)
