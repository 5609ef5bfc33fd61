"""The offline API: ``LLM(model=...).generate(prompts, SamplingParams(...))``, as in vLLM.

The same core, scheduler and runner as behind the gateway, stepped by the calling thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from itertools import accumulate, count
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import msgspec
import numpy as np

from engine import prompt_images, sampling_defaults
from engine.adapters import LoadedAdapter
from engine.config import EngineConfig
from engine.errors import AdapterLoadError, ConfigError, EngineError, InvalidRequest, QueueFull
from engine.field_hints import explain
from engine.garbage import full_collections_held_back
from engine.images.load import load_processor
from engine.images.processor import ImageProcessor
from engine.interrupts import interrupts_held_back
from engine.lora.request import LoRARequest
from engine.messages import (
    AdapterRef,
    GenerateRequest,
    Image,
    LoadProgress,
    Ready,
    RequestOutput,
    Stats,
)
from engine.outputs import (
    CompletionOutput,
    Embedding,
    GenerationOutput,
    GenerationProgress,
    Logprob,
    PoolingOutput,
    Score,
)
from engine.pooling import PoolingModel, PoolingParams, cosine
from engine.process import build_engine
from engine.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputs
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "CompletionOutput",
    "GenerationOutput",
    "LoRARequest",
    "Logprob",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputs",
    "TokensPrompt",
]

Message: TypeAlias = dict[str, Any]

_NO_SAMPLING = SamplingParams()
_STREAM_OPEN = "a stream of this LLM is still open: read it to its end or close it"
_STEP_BROKEN = "an earlier call broke off in the middle of a step: make a new LLM"


class Pictures(TypedDict, total=False):
    multi_modal_data: dict[str, Any]
    """``{"image": …}``: one or a list of Pillow's images, paths or data: URLs, a placeholder in the
    prompt for each."""


class TokensPrompt(Pictures):
    prompt_token_ids: list[int]


class TextPrompt(Pictures):
    prompt: str


Prompt: TypeAlias = str | TokensPrompt | TextPrompt
LoRA: TypeAlias = LoRARequest | Sequence[LoRARequest | None] | None


class LLM:
    """A loaded model. Not thread-safe; one call or stream at a time."""

    def __init__(
        self,
        model: str | Path,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        **options: object,
    ) -> None:
        """Load a model. ``options`` are the fields of ``EngineConfig``.

        Raises ``ConfigError``, which names an unknown or wrong option, or ``ModelLoadError``.
        """
        self.config = _config(str(model), options)
        engine = build_engine(self.config, on_progress or (lambda _: None))
        self._core = engine.core
        self._max_tokens_launched = engine.max_tokens_launched
        self.info: Ready = engine.ready
        self._ids = count()
        self._adapters: dict[str, AdapterRef] = {}
        """Loaded adapters by name."""
        self._outputs: list[RequestOutput] = []
        """Outputs of steps that the open stream has not read yet."""
        self._obstacle: str | None = None
        """Why no call can begin now; None if one can."""

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return None if self.config.skip_tokenizer_init else Tokenizer.load(self.config.model_dir)

    @cached_property
    def _image_processor(self) -> ImageProcessor | None:
        return load_processor(self.config.model_dir)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate.load(self.config.model_dir)

    def stats(self) -> Stats:
        """Running totals since the model was loaded."""
        return self._core.stats()

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConfigError("skip_tokenizer_init is set: send prompts as prompt_token_ids")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of the model's ``generation_config.json``: those of calls that give
        none."""
        stated: Mapping[str, Any] = sampling_defaults.load(self.config.model_dir)
        return SamplingParams(**stated)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRA = None,
        on_output: Callable[[GenerationOutput], None] | None = None,
    ) -> list[GenerationOutput]:
        """Complete all prompts in one continuous batch; returns the results in the prompts' order.

        All results are final, whatever ``output_kind`` says. ``on_output`` is called with each as
        soon as it is there. ``lora_request``: the adapter of all prompts, or of each; needs
        ``enable_lora``. Raises ``InvalidRequest``, which names the first prompt that can never run,
        before anything is generated; or ``AdapterLoadError``.
        """
        with full_collections_held_back():
            jobs = self._begin(prompts, sampling_params, lora_request)
            return self._complete(jobs, on_output)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRA = None,
    ) -> Generator[GenerationOutput, None, None]:
        """As ``generate``, but yields results as tokens come.

        ``output_kind`` says what each result holds: all of one completion so far, what is new of
        it, or everything at the end. Closing the generator ends the completions that still run.
        """
        return self._stream(self._begin(prompts, sampling_params, lora_request))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRA = None,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """``generate`` for one conversation or several, rendered with the model's template.

        Of a model that sees, a message's content may be a list with parts such as ``{"type":
        "image", "image": …}``, of what ``multi_modal_data`` takes, or ``image_url``s of data."""
        conversations = cast(
            "Iterable[list[Message]]",
            [messages] if messages and isinstance(messages[0], dict) else messages,
        )
        prompts: list[Prompt] = []
        for conversation in conversations:
            messages, pictures = prompt_images.of_chat(conversation)
            text = self._chat_template.render(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **(chat_template_kwargs or {}),
            )
            if pictures:
                prompts.append({"prompt": text, "multi_modal_data": {"image": pictures}})
            else:
                prompts.append(text)
        with full_collections_held_back():
            jobs = self._begin(prompts, sampling_params, lora_request, add_special_tokens=False)
            return self._complete(jobs, None)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None
    ) -> list[PoolingOutput[Embedding]]:
        """The vectors of all prompts, in their order. The model's default prompt, if it has one,
        comes before each text. dimensions: of the vectors, where the model allows fewer.

        Raises ``InvalidRequest``, also for a model that makes no embeddings.
        """
        pooling = self._pooling("embed")
        pooling.check_dimensions(dimensions)
        many = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        return self._embed(pooling, many, dimensions, pooling.default_prompt)

    def _embed(
        self,
        pooling: PoolingModel,
        prompts: Sequence[Prompt],
        dimensions: int | None,
        instruction: str,
    ) -> list[PoolingOutput[Embedding]]:
        texts = [instruction + p if isinstance(p, str) else p for p in prompts]
        encoded = self._encode(texts, add_special_tokens=True)
        return [
            PoolingOutput(name, Embedding(pooling.vector(pooled, dimensions).tolist()), ids)
            for name, pooled, ids in self._pool([(ids, None) for ids in encoded])
        ]

    def score(
        self, queries: str | Sequence[str], documents: str | Sequence[str]
    ) -> list[PoolingOutput[Score]]:
        """How well each document answers its query, or the only one: by a cross-encoder, or else
        the cosine of the embeddings (with the model's prompts for "query" and "document").

        Raises ``InvalidRequest``, also for a model that generates text.
        """
        pooling = self._pooling("score")
        ones = [queries] if isinstance(queries, str) else list(queries)
        others = [documents] if isinstance(documents, str) else list(documents)
        if len(ones) not in (1, len(others)):
            raise InvalidRequest(f"{len(ones)} queries for {len(others)} documents")
        if pooling.task == "embed":
            return self._cosines(pooling, ones, others)
        pairs = zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True)
        encoded = self.get_tokenizer().encode_pairs(list(pairs))
        return [
            PoolingOutput(name, Score(float(pooling.vector(pooled)[0])), ids)
            for name, pooled, ids in self._pool(encoded)
        ]

    def _cosines(
        self, pooling: PoolingModel, queries: list[str], documents: list[str]
    ) -> list[PoolingOutput[Score]]:
        sides = (queries, "query"), (documents, "document")
        ones, others = (
            self._embed(pooling, texts, None, pooling.prompts.get(name, pooling.default_prompt))
            for texts, name in sides
        )
        found = []
        for index, other in enumerate(others):
            one = ones[index if len(ones) > 1 else 0]
            score = cosine(*(np.array(o.outputs.embedding, np.float32) for o in (one, other)))
            ids = one.prompt_token_ids + other.prompt_token_ids
            found.append(PoolingOutput(other.request_id, Score(score), ids))
        return found

    def _pooling(self, method: str) -> PoolingModel:
        """What the model makes of a prompt. Raises ``InvalidRequest`` if it is not for
        ``method``."""
        pooling = self.config.pooling
        if pooling is None:
            raise InvalidRequest(f"{method}: {self.config.model} generates text: use generate")
        if method == "embed" and pooling.task != "embed":
            raise InvalidRequest(f"embed: {self.config.model} is a cross-encoder: use score")
        return pooling

    def _pool(
        self, prompts: Sequence[tuple[list[int], int | None]]
    ) -> list[tuple[str, bytes, list[int]]]:
        """(request id, result, token ids) of each of the prompts, which are token ids and
        ``PoolingParams.second_text``."""
        if self._obstacle is not None:
            raise EngineError(self._obstacle)
        self._obstacle = _STEP_BROKEN
        names = [str(next(self._ids)) for _ in prompts]
        found: dict[str, bytes] = {}
        try:
            with full_collections_held_back(), interrupts_held_back():
                # In one step those of like length, which need the least padding.
                for index in sorted(range(len(names)), key=lambda i: len(prompts[i][0])):
                    ids, second = prompts[index]
                    self._core.add_request(
                        GenerateRequest(
                            request_id=names[index],
                            prompt_token_ids=ids,
                            params=_NO_SAMPLING,
                            pooling=PoolingParams(second_text=second),
                        )
                    )
            while self._core.has_unfinished:
                with interrupts_held_back():
                    for output in self._core.step():
                        if output.finish_reason == "error":
                            raise InvalidRequest(f"prompt {output.request_id}: {output.error}")
                        if output.pooled is not None:
                            found[output.request_id] = output.pooled
        finally:
            self._clear(names)
        return [(name, found[name], ids) for name, (ids, _) in zip(names, prompts, strict=True)]

    def load_lora(self, lora_request: LoRARequest) -> None:
        """Load an adapter before its first use. Raises ``AdapterLoadError``, which says what does
        not fit, or ``InvalidRequest``."""
        name, path = lora_request.lora_name, str(lora_request.lora_path)
        known = self._adapters.get(name)
        if known is None:
            if not name:
                raise InvalidRequest("lora_name must not be empty")
            self._adapters[name] = self._load_adapter(AdapterRef(name=name, path=path))
        elif known.path != path:
            raise InvalidRequest(
                f"lora_name {name!r} is in use for {known.path}: unload_lora it, or choose another"
            )

    def unload_lora(self, lora_name: str) -> None:
        """Forget an adapter; a stream that uses it goes on to its end.

        Raises ``InvalidRequest`` if it is not loaded.
        """
        if lora_name not in self._adapters:
            raise InvalidRequest(f"adapter {lora_name!r} is not loaded")
        del self._adapters[lora_name]
        self._core.unload_adapter(lora_name)

    def _load_adapter(self, ref: AdapterRef) -> AdapterRef:
        """Load an adapter; returns ``ref`` with the digest of its files. Open streams advance
        meanwhile."""
        results: list[LoadedAdapter | AdapterLoadError] = []
        self._core.load_adapter(ref, results.append)
        while not results:
            with interrupts_held_back():
                self._outputs += self._core.step()
        (result,) = results
        if isinstance(result, AdapterLoadError):
            raise result
        return msgspec.structs.replace(ref, digest=result.digest)

    def _adapter_refs(self, lora_request: LoRA, num_prompts: int) -> list[AdapterRef | None]:
        """The loaded adapter of each prompt, None for none."""
        if lora_request is None or isinstance(lora_request, LoRARequest):
            lora_request = [lora_request] * num_prompts
        if len(lora_request) != num_prompts:
            raise InvalidRequest(f"{len(lora_request)} lora_request for {num_prompts} prompts")
        for request in lora_request:
            if request is not None:
                self.load_lora(request)
        return [None if one is None else self._adapters[one.lora_name] for one in lora_request]

    def _begin(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        lora_request: LoRA,
        *,
        add_special_tokens: bool = True,
    ) -> list[GenerationProgress]:
        if self.config.pooling is not None:
            raise InvalidRequest(f"{self.config.model} generates no text: use embed or score")
        many = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _broadcast(sampling_params, len(many))
        adapters = self._adapter_refs(lora_request, len(many))
        ids = self._encode(many, add_special_tokens=add_special_tokens)
        return list(map(self._read, many, ids, params, adapters))

    def _encode(self, prompts: list[Prompt], *, add_special_tokens: bool) -> list[list[int]]:
        known = [_text(prompt) for prompt in prompts]
        texts = [text for text in known if text is not None]
        encoded: list[list[int]] = []
        if texts:
            encoded = self.get_tokenizer().encode_batch(
                texts, add_special_tokens=add_special_tokens
            )
        of_text = iter(encoded)
        return [
            _token_ids(prompt) if text is None else next(of_text)
            for prompt, text in zip(prompts, known, strict=True)
        ]

    def _read(
        self,
        prompt: Prompt,
        ids: list[int],
        params: SamplingParams,
        adapter: AdapterRef | None,
    ) -> GenerationProgress:
        request_id = str(next(self._ids))
        if not ids:
            raise InvalidRequest(f"prompt {request_id} is empty: give at least one token")
        images: list[Image] = []
        if pictures := prompt_images.of_prompt(prompt):
            ids, images = prompt_images.placed(self._image_processor, ids, pictures)
        if len(ids) >= self.info.max_model_len:
            raise InvalidRequest(
                f"prompt {request_id} has {len(ids)} tokens, which leaves no room in "
                f"max_model_len = {self.info.max_model_len}"
            )
        text, params = _text(prompt), self._in_tokens(params)
        return GenerationProgress(request_id, text, ids, params, self._tokenizer, adapter, images)

    def _in_tokens(self, params: SamplingParams) -> SamplingParams:
        """The parameters with ``bad_words`` turned into token ids for the engine."""
        if self._tokenizer is None:
            if params.stop:
                raise InvalidRequest("stop strings need the tokenizer: skip_tokenizer_init is set")
            if params.bad_words and not params.bad_words_token_ids:
                raise InvalidRequest(
                    "bad_words need the tokenizer: skip_tokenizer_init is set, send "
                    "bad_words_token_ids"
                )
            return params
        if not params.bad_words:
            return params
        found = self._tokenizer.bad_words_token_ids(params.bad_words)
        return msgspec.structs.replace(
            params, bad_words_token_ids=params.bad_words_token_ids + found
        )

    def _complete(
        self, jobs: list[GenerationProgress], on_output: Callable[[GenerationOutput], None] | None
    ) -> list[GenerationOutput]:
        finals: dict[str, GenerationOutput] = {}
        with closing(self._stream(jobs, RequestOutputKind.FINAL_ONLY)) as results:
            for result in results:
                finals[result.request_id] = result
                if on_output is not None:
                    on_output(result)
        return [finals[job.request_id] for job in jobs]

    def _stream(
        self, jobs: list[GenerationProgress], kind: RequestOutputKind | None = None
    ) -> Generator[GenerationOutput, None, None]:
        """Run the jobs, yielding results of ``kind``, or of each job's own ``output_kind``."""
        if self._obstacle is not None:
            raise EngineError(self._obstacle)
        self._obstacle = _STREAM_OPEN
        live: dict[str, tuple[GenerationProgress, int]] = {}
        num_first = self._num_first(jobs)
        try:
            with interrupts_held_back():
                self._submit(jobs[:num_first], live)
            rest = jobs[num_first:]
            while live:
                with interrupts_held_back():
                    self._outputs += self._core.step()
                    self._submit(rest, live)  # while the device computes the first step
                rest = []
                outputs, self._outputs = self._outputs, []
                for output in outputs:
                    if output.request_id not in live:
                        continue
                    job, index = live[output.request_id]
                    _raise_error(job, output)
                    delta = job.push(index, output)
                    if job.is_finished(index):
                        del live[output.request_id]
                        if output.finish_reason is None:  # a stop string, which only we know
                            with interrupts_held_back():
                                self._core.abort([output.request_id])
                    result = job.result(kind or job.params.output_kind, index, delta)
                    if result is not None:
                        yield result
        finally:
            self._clear(list(live))

    def _clear(self, request_ids: list[str]) -> None:
        """Leave an idle core for the next call, after an error, Ctrl-C or a closed stream."""
        self._obstacle = _STEP_BROKEN
        # The error that broke the step is the one to report, not one raised here.
        with interrupts_held_back(), suppress(Exception):
            self._core.abort(request_ids)
            while self._core.has_unfinished:
                self._core.step()
            self._outputs.clear()
            self._obstacle = None

    def _num_first(self, jobs: list[GenerationProgress]) -> int:
        """How many jobs to submit before the first step: those that fill it. The others are
        submitted while the device computes that step."""
        most = self._max_tokens_launched
        if most is None:
            return len(jobs)
        ends = list(accumulate(len(job.prompt_token_ids) for job in jobs))
        return bisect_left(ends, most) + 1

    def _submit(
        self, jobs: list[GenerationProgress], live: dict[str, tuple[GenerationProgress, int]]
    ) -> None:
        for job in jobs:
            for index in range(job.params.n):
                request_id = f"{job.request_id}-{index}" if index else job.request_id
                self._core.add_request(
                    GenerateRequest(
                        request_id=request_id,
                        prompt_token_ids=job.prompt_token_ids,
                        params=job.params.branch(index),
                        adapter=job.adapter,
                        group=job.request_id if job.params.n > 1 else "",
                        images=job.images,
                    )
                )
                live[request_id] = job, index


def _raise_error(job: GenerationProgress, output: RequestOutput) -> None:
    if output.finish_reason == "error":
        errors = {"invalid_request": InvalidRequest, "queue_full": QueueFull}
        error = errors.get(output.error_code or "", EngineError)
        raise error(f"prompt {job.request_id}: {output.error}")


def _config(model: str, options: dict[str, object]) -> EngineConfig:
    try:
        return msgspec.convert({"model": model, **options}, EngineConfig)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise ConfigError(explain(error, EngineConfig)) from None


def _broadcast(
    params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    many = list(params) if isinstance(params, Sequence) else [params]
    wrong = [each for each in many if not isinstance(each, SamplingParams)]
    if wrong:
        raise InvalidRequest(f"sampling_params must be SamplingParams, got {wrong[0]!r}")
    if len(many) != num_prompts:
        raise InvalidRequest(f"{len(many)} sampling_params for {num_prompts} prompts")
    return many


def _text(prompt: object) -> str | None:
    """The text of a prompt; None if it is token ids."""
    if isinstance(prompt, Mapping) and "prompt_token_ids" not in prompt:
        prompt = prompt.get("prompt")
    return prompt if isinstance(prompt, str) else None


def _token_ids(prompt: object) -> list[int]:
    """The ids of a ``TokensPrompt``, which may come in any sequence or array."""
    if not isinstance(prompt, Mapping) or "prompt_token_ids" not in prompt:
        raise InvalidRequest(
            f'a prompt must be a text, {{"prompt": "..."}} or {{"prompt_token_ids": [...]}}, got'
            f" {prompt!r}"
        )
    ids = prompt["prompt_token_ids"]
    try:
        return msgspec.convert(ids.tolist() if hasattr(ids, "tolist") else ids, list[int])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"prompt_token_ids must hold integers: {error}") from None
