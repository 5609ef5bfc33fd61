"""The offline API: ``LLM(model=...).generate(prompts, SamplingParams(...))``, as in vLLM.

The same core, scheduler and runner as behind the gateway, stepped by the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import msgspec

from engine.chat_template import ChatTemplate
from engine.config import EngineConfig
from engine.detokenize import Detokenizer
from engine.errors import ConfigError, EngineError, InvalidRequest
from engine.messages import (
    FinishReason,
    GenerateRequest,
    LoadProgress,
    Ready,
    RequestOutput,
    SamplingParams,
    TokenLogprobs,
)
from engine.process import build_engine
from engine.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "CompletionOutput",
    "GenerationOutput",
    "Logprob",
    "SamplingParams",
    "TokensPrompt",
]

Message: TypeAlias = dict[str, Any]


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


Prompt: TypeAlias = str | TokensPrompt


@dataclass(frozen=True, slots=True)
class Logprob:
    """As in vLLM."""

    logprob: float
    rank: int
    """1 for the likeliest token."""
    decoded_token: str | None
    """The token by itself; None with ``skip_tokenizer_init``."""


@dataclass(slots=True)
class CompletionOutput:
    """What was generated for a prompt."""

    index: int
    text: str
    """``""`` with ``skip_tokenizer_init``."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for the model's own EOS."""
    logprobs: list[dict[int, Logprob]] | None = None
    """If asked for: at the place of each of ``token_ids``, that token and the likeliest ones."""


@dataclass(slots=True)
class GenerationOutput:
    """A prompt and its completion, shaped like vLLM's ``RequestOutput``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """If asked for: the same for the prompt; None at its first token."""


@dataclass(slots=True)
class _Job:
    output: GenerationOutput
    params: SamplingParams
    detokenizer: Detokenizer | None
    texts: list[str] = field(default_factory=list)


class LLM:
    """A loaded model. Not thread-safe: one ``generate`` at a time."""

    def __init__(
        self,
        model: str | Path,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        **options: object,
    ) -> None:
        """``options`` are the fields of ``EngineConfig``.

        ``ConfigError`` names an unknown or wrong one; ``ModelLoadError`` says what ails the model.
        """
        self.config = _config(str(model), options)
        engine = build_engine(self.config, on_progress or (lambda _: None))
        self._core = engine.core
        self.info: Ready = engine.ready
        self._ids = count()

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return None if self.config.skip_tokenizer_init else Tokenizer.load(self.config.model_dir)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate.load(self.config.model_dir)

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConfigError("skip_tokenizer_init is set: send prompts as prompt_token_ids")
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: Callable[[GenerationOutput], None] | None = None,
    ) -> list[GenerationOutput]:
        """Completes all prompts in one continuous batch; results are in the prompts' order.

        ``on_output`` is called with each result as soon as it is there. ``InvalidRequest`` names
        the first prompt that can never run; nothing is generated then.
        """
        many = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        params = _broadcast(sampling_params, len(many))
        jobs = [self._job(prompt, p) for prompt, p in zip(many, params, strict=True)]
        self._run(jobs, on_output)
        return [job.output for job in jobs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """``generate`` for one conversation or several, rendered with the model's template."""
        conversations = cast(
            "Iterable[list[Message]]",
            [messages] if messages and isinstance(messages[0], dict) else messages,
        )
        texts = [
            self._chat_template.render(
                list(conversation),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        params = _broadcast(sampling_params, len(texts))
        jobs = [
            self._job(text, p, add_special_tokens=False)
            for text, p in zip(texts, params, strict=True)
        ]
        self._run(jobs, None)
        return [job.output for job in jobs]

    def _job(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> _Job:
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            ids = self.get_tokenizer().encode(prompt, add_special_tokens=add_special_tokens)
        else:
            ids = list(prompt["prompt_token_ids"])
        request_id = str(next(self._ids))
        if not ids:
            raise InvalidRequest(f"prompt {request_id} is empty: give at least one token")
        if len(ids) >= self.info.max_model_len:
            raise InvalidRequest(
                f"prompt {request_id} has {len(ids)} tokens, which leaves no room in "
                f"max_model_len = {self.info.max_model_len}"
            )
        output = GenerationOutput(request_id, text, ids, [CompletionOutput(0, "", [])])
        return _Job(output, self._with_bad_words(params), self._detokenizer(params))

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        if not params.bad_words or params.bad_words_token_ids:
            return params
        if self._tokenizer is None:
            raise InvalidRequest(
                "bad_words need the tokenizer: skip_tokenizer_init is set, send bad_words_token_ids"
            )
        return msgspec.structs.replace(
            params, bad_words_token_ids=self._tokenizer.bad_words_token_ids(params.bad_words)
        )

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None:
            if params.stop:
                raise InvalidRequest("stop strings need the tokenizer: skip_tokenizer_init is set")
            return None
        return Detokenizer(
            self._tokenizer,
            stop=params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
        )

    def _run(self, jobs: list[_Job], on_output: Callable[[GenerationOutput], None] | None) -> None:
        live = {job.output.request_id: job for job in jobs}
        try:
            for request_id, job in live.items():
                self._core.add_request(
                    GenerateRequest(
                        request_id=request_id,
                        prompt_token_ids=job.output.prompt_token_ids,
                        params=job.params,
                    )
                )
            while live:
                for output in self._core.step():
                    job_or_none = live.get(output.request_id)
                    if job_or_none is None or not self._advance(job_or_none, output):
                        continue
                    del live[output.request_id]
                    if on_output is not None:
                        on_output(job_or_none.output)
        finally:
            # After an error or Ctrl-C the next call must find an idle core.
            self._core.abort(list(live))
            while self._core.has_unfinished:
                self._core.step()

    def _advance(self, job: _Job, output: RequestOutput) -> bool:
        """True when the job is done."""
        if output.finish_reason == "error":
            error = InvalidRequest if output.error_code == "invalid_request" else EngineError
            raise error(f"prompt {output.request_id}: {output.error}")
        completion = job.output.outputs[0]
        completion.token_ids += output.new_token_ids
        completion.finish_reason = output.finish_reason
        completion.stop_reason = output.stop_reason
        if output.logprobs is not None:
            completion.logprobs = completion.logprobs or []
            completion.logprobs += map(self._named, output.logprobs)
        if output.prompt_logprobs is not None:
            job.output.prompt_logprobs = [None, *map(self._named, output.prompt_logprobs)]
        job.output.num_cached_tokens = max(job.output.num_cached_tokens, output.num_cached_tokens)
        if job.detokenizer is not None:
            job.texts.append(job.detokenizer.push_output(output))
            if job.detokenizer.stopped is not None:
                completion.finish_reason = "stop"
                completion.stop_reason = job.detokenizer.stopped
                if output.finish_reason is None:
                    self._core.abort([output.request_id])
        if completion.finish_reason is None:
            return False
        completion.text = "".join(job.texts)
        return True

    def _named(self, found: TokenLogprobs) -> dict[int, Logprob]:
        """The token itself first, then the likeliest that are others."""
        entries = [(found.token_id, found.logprob, found.rank)]
        entries += [(token_id, logprob, 1 + i) for i, (token_id, logprob) in enumerate(found.top)]
        return {
            token_id: Logprob(logprob, rank, self._decoded(token_id))
            for token_id, logprob, rank in entries
        }

    def _decoded(self, token_id: int) -> str | None:
        if self._tokenizer is None:
            return None
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def _config(model: str, options: dict[str, object]) -> EngineConfig:
    try:
        return msgspec.convert({"model": model, **options}, EngineConfig)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise ConfigError(str(error)) from None


def _broadcast(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequest(f"{len(params)} sampling_params for {num_prompts} prompts")
    return list(params)
