"""May this request run, and as what: from a client's fields to token ids and sampling parameters.

Nothing is accepted and ignored: a field the server cannot act on is refused with its name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from engine.chat_template import ChatTemplate
from engine.client import EngineClient
from engine.messages import SamplingParams, StructuredOutputs
from engine.tokenizer import Tokenizer
from gateway import prompt, text_prompt
from gateway.config import Config
from gateway.errors import (
    ContextLengthExceeded,
    Draining,
    InvalidRequestError,
    ModelNotFound,
    Overloaded,
    UnsupportedParameter,
)
from gateway.generation import Admitted
from gateway.parsers.hermes import OPEN, HermesParser
from gateway.schemas.chat import (
    ChatCompletionRequest,
    ChatFields,
    JsonObjectFormat,
    JsonSchemaFormat,
)
from gateway.schemas.completions import CompletionRequest
from gateway.secrets import Secrets
from grammar.compiler import GrammarChecker
from grammar.spec import GrammarSpec
from tenants.access import require_scope, resolve_model
from tenants.authenticator import Authenticator
from tenants.errors import InvalidValue
from tenants.names import normalize_name
from tenants.quota import Hold, Quota
from tenants.salts import cache_salt
from tenants.types import Principal, Scope
from tenants.usage import Ledger

UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that are refused unless null or one of these values, at which they change nothing."""

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, tuple[object, ...]] = {
    "best_of": (),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (),
    "presence_penalty": (0,),
    "suffix": (),
}
"""The same for ``POST /v1/completions``; there ``logprobs`` is a number, and 0 asks for some."""

MAX_CHOICES = 8
MAX_STOPS = 4
DEFAULT_COMPLETION_TOKENS = 16
"""New tokens of a text completion that sets no limit: OpenAI's default, as clients expect it."""
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

LONG_PROMPT_BYTES = 4096
"""Prompts from here on are rendered and tokenized in a thread: a few milliseconds of event loop."""


class Admission:
    """Turns chats into ``Admitted`` requests. One per gateway."""

    def __init__(
        self,
        config: Config,
        *,
        engine: EngineClient,
        ledger: Ledger,
        quota: Quota,
        authenticator: Authenticator,
        secrets: Secrets,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        compiler: GrammarChecker,
        sampling_defaults: Mapping[str, float | int] | None = None,
    ) -> None:
        self.draining = False
        """Set when the server shuts down: nothing more is admitted."""
        self._model = config.model_name
        self._default_max_tokens = config.models.default_max_tokens
        self._engine = engine
        self._ledger = ledger
        self._quota = quota
        self._authenticator = authenticator
        self._price = config.models.price
        self._salt_root = secrets.cache_salt_root
        self._tokenizer = tokenizer
        self._template = template
        self._compiler = compiler
        self._sampling_defaults = sampling_defaults or {}
        # Where the tags of calls are special tokens, hiding those would hide the calls.
        tag = tokenizer.encode(OPEN, add_special_tokens=False)
        self._tags_are_special = not tokenizer.special_ids.isdisjoint(tag)

    async def admit_completion(
        self, request: ChatCompletionRequest, *, request_id: UUID, principal: Principal
    ) -> Admitted:
        """As ``admit``, with the fields that only Chat Completions has."""
        refuse_unsupported(request, UNSUPPORTED)
        _check_stream_options(request)
        return await self.admit(
            request,
            model=request.model,
            num_choices=_num_choices(request.n),
            request_id=request_id,
            principal=principal,
        )

    async def admit_text_completion(
        self, request: CompletionRequest, *, request_id: UUID, principal: Principal
    ) -> tuple[Admitted, list[str]]:
        """As ``admit``, for prompts without a template; with each prompt's text for ``echo``.

        The texts are empty unless the request asks to echo them.
        """
        refuse_unsupported(request, UNSUPPORTED_IN_COMPLETIONS)
        _check_stream_options(request)
        self._check_open(principal)
        self._check_model(principal, request.model)
        end_user = _end_user(request.user)
        num_choices = _num_choices(request.n)
        stop = _stop_strings(request.stop)
        max_model_len = self._engine.info.max_model_len
        await self._engine.check_queue(principal.tenant.id.hex)
        prompts = await text_prompt.read(request.prompt, self._tokenizer)
        longest = max(len(prompt.token_ids) for prompt in prompts)
        room = _room(longest, max_model_len, param="prompt")
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = min(room, self._default_max_tokens or DEFAULT_COMPLETION_TOKENS)
        _check_fits(max_tokens, longest, max_model_len, param="max_tokens")
        params = _sampling_params(request, max_tokens, None, self._sampling_defaults)
        hold = await self._reserve(
            principal,
            request_id,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            max_tokens=max_tokens * len(prompts) * num_choices,
        )
        admitted = Admitted(
            id=request_id,
            principal=principal,
            model=self._model,
            prompts=[prompt.token_ids for prompt in prompts],
            params=params,
            stop=stop,
            num_choices=num_choices,
            make_parser=None,
            skip_special_tokens=True,
            cache_salt=cache_salt(self._salt_root, principal.tenant.id),
            hold=hold,
            price=self._price,
            end_user=end_user,
        )
        return admitted, [prompt.text if request.echo else "" for prompt in prompts]

    async def admit(
        self,
        fields: ChatFields,
        *,
        model: str | None,
        request_id: UUID,
        principal: Principal,
        num_choices: int = 1,
        scope: Scope = "chat",
    ) -> Admitted:
        """Check everything that can be known before the engine has the request.

        The answer holds quota: ``Generations.begin`` takes it over, without an await in between.
        Raises ``ApiError``, ``EngineDead``, ``GrammarError``, ``InvalidRequest`` or
        ``TenantsError``: all of them are ``errors.to_api_error``'s to translate.
        """
        self._check_open(principal, scope)
        self._check_model(principal, self._model if model is None else model)
        end_user = _end_user(fields.user)
        has_tools = _check_tools(fields)
        check_metadata(fields.metadata)
        stop = _stop_strings(fields.stop)
        max_model_len = self._engine.info.max_model_len
        if len(fields.messages) > max_model_len:  # each is a token at least: spare the rendering
            raise ContextLengthExceeded(
                f"There are {len(fields.messages)} messages, but the model takes {max_model_len} "
                "tokens in all.",
                param="messages",
            )
        await self._engine.check_queue(principal.tenant.id.hex)
        structured_outputs = await self._structured_outputs(fields)
        prompt_token_ids = await self._prompt(fields, has_tools=has_tools)
        max_tokens = self._max_tokens(fields, len(prompt_token_ids), max_model_len)
        params = _sampling_params(fields, max_tokens, structured_outputs, self._sampling_defaults)
        hold = await self._reserve(
            principal,
            request_id,
            prompt_tokens=len(prompt_token_ids),
            max_tokens=max_tokens * num_choices,
        )
        return Admitted(
            id=request_id,
            principal=principal,
            model=self._model,
            prompts=[prompt_token_ids],
            params=params,
            stop=stop,
            num_choices=num_choices,
            make_parser=HermesParser if has_tools else None,
            skip_special_tokens=not (has_tools and self._tags_are_special),
            cache_salt=cache_salt(self._salt_root, principal.tenant.id),
            hold=hold,
            price=self._price,
            end_user=end_user,
        )

    def _check_open(self, principal: Principal, scope: Scope = "chat") -> None:
        require_scope(principal.key, scope)
        if self.draining:
            raise Draining("The server is shutting down.", retry_after_s=1)
        if not self._ledger.has_room:
            raise Overloaded("Usage cannot be recorded at the moment.", retry_after_s=5)

    async def _reserve(
        self, principal: Principal, request_id: UUID, *, prompt_tokens: int, max_tokens: int
    ) -> Hold:
        """Last of all: nothing that can be refused comes after it, but a key that ended meanwhile.

        Raises ``QuotaExceeded``, ``StoreUnavailable``, ``AuthenticationFailed``.
        """
        hold = await self._quota.reserve(
            principal,
            request_id=request_id,
            model=self._model,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            price=self._price,
        )
        try:
            # It may have waited in a queue; and while it is not running, nobody else looks.
            await self._authenticator.check(principal.key.public_id)
        except BaseException:
            await self._quota.release(hold)
            raise
        return hold

    def _check_model(self, principal: Principal, model: str) -> None:
        if resolve_model(principal.key, model) != self._model:
            raise ModelNotFound(
                f"The model {model!r} does not exist; this server has {self._model!r}.",
                param="model",
            )

    async def _prompt(self, fields: ChatFields, *, has_tools: bool) -> list[int]:
        messages = prompt.messages_for_template(fields.messages)
        tools = msgspec.to_builtins(fields.tools) if has_tools else None

        def encode() -> list[int]:
            text = self._template.render(messages, tools=tools)
            return self._tokenizer.encode(text, add_special_tokens=False)

        if prompt.size(messages, tools) < LONG_PROMPT_BYTES:
            return encode()
        return await asyncio.to_thread(encode)

    def _max_tokens(self, fields: ChatFields, num_prompt_tokens: int, max_model_len: int) -> int:
        room = _room(num_prompt_tokens, max_model_len, param="messages")
        name = "max_tokens" if fields.max_tokens is not None else "max_completion_tokens"
        wanted = getattr(fields, name)
        if fields.max_tokens is not None and fields.max_completion_tokens is not None:
            raise InvalidRequestError("Set max_completion_tokens or this, not both.", param=name)
        if wanted is None:
            return min(room, self._default_max_tokens or room)
        _check_fits(wanted, num_prompt_tokens, max_model_len, param=name)
        return int(wanted)

    async def _structured_outputs(self, fields: ChatFields) -> StructuredOutputs | None:
        """Compiled here once, so that a bad schema is a 400 and not a failed stream."""
        match fields.response_format:
            case JsonSchemaFormat(json_schema=wanted):
                if _NAME.fullmatch(wanted.name) is None:
                    raise InvalidRequestError(
                        "Must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -.",
                        param="response_format.json_schema.name",
                    )
                schema = _text_of(wanted.schema)
                await self._compile(GrammarSpec("json_schema", schema))
                return StructuredOutputs(json=schema)
            case JsonObjectFormat():
                await self._compile(GrammarSpec("json_object"))
                return StructuredOutputs(json_object=True)
            case _:
                return None

    async def _compile(self, spec: GrammarSpec) -> None:
        await asyncio.wrap_future(self._compiler.submit(spec))


def _text_of(schema: msgspec.Raw) -> str:
    try:
        return bytes(schema).decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(
            "Must be UTF-8.", param="response_format.json_schema.schema"
        ) from None


def _room(num_prompt_tokens: int, max_model_len: int, *, param: str) -> int:
    """Tokens left for the answer. Raises ``ContextLengthExceeded`` when there is none."""
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"{param} resulted in {num_prompt_tokens} tokens. Please reduce the length of "
            f"the {param}.",
            param=param,
        )
    return room


def _check_fits(max_tokens: int, num_prompt_tokens: int, max_model_len: int, *, param: str) -> None:
    total = num_prompt_tokens + max_tokens
    if total > max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {total} tokens ({num_prompt_tokens} in the prompt, {max_tokens} in the "
            "completion). Please reduce either.",
            param=param,
        )


def _end_user(user: str | None) -> str | None:
    if user is None:
        return None
    try:
        return normalize_name("user", user)
    except InvalidValue as exc:
        raise InvalidRequestError(f"It {exc.reason}.", param="user") from None


def _num_choices(n: int | None) -> int:
    num_choices = 1 if n is None else n
    if not 1 <= num_choices <= MAX_CHOICES:
        raise InvalidRequestError(f"Must be from 1 to {MAX_CHOICES}, got {num_choices}.", param="n")
    return num_choices


def _check_stream_options(request: ChatCompletionRequest | CompletionRequest) -> None:
    if request.stream_options is None:
        return
    if not request.stream:
        raise InvalidRequestError("Only allowed when stream is true.", param="stream_options")
    if request.stream_options.include_obfuscation:
        raise UnsupportedParameter(
            "Chunks are not padded by this server; leave it out or send false.",
            param="stream_options.include_obfuscation",
        )


def refuse_unsupported(
    request: msgspec.Struct,
    unsupported: Mapping[str, tuple[object, ...]],
) -> None:
    """Raises ``UnsupportedParameter`` for the first field that would have to change something."""
    for name, neutral in unsupported.items():
        value = getattr(request, name)
        if value is None or any(_same(value, harmless) for harmless in neutral):
            continue
        raise UnsupportedParameter(
            f"The parameter {name} is not supported by this server; leave it out.", param=name
        )


def _same(value: object, other: object) -> bool:
    """Equal as JSON values are: false is not 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """OpenAI's limits. Raises ``InvalidRequestError``."""
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise InvalidRequestError(f"At most {MAX_METADATA} pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequestError(
                f"Keys have at most {MAX_METADATA_KEY} characters, values {MAX_METADATA_VALUE}.",
                param=f"metadata.{key[:MAX_METADATA_KEY]}",
            )


def _check_tools(fields: ChatFields) -> bool:
    """Whether the model is told of tools, and its calls looked for."""
    if fields.tools is None:
        if fields.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError("Only allowed when tools are given.", param="tool_choice")
        return False
    if len(fields.tools) > MAX_TOOLS:
        raise InvalidRequestError(f"At most {MAX_TOOLS} tools.", param="tools")
    for index, tool in enumerate(fields.tools):
        if _NAME.fullmatch(tool.function.name) is None:
            raise InvalidRequestError(
                "Must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -.",
                param=f"tools[{index}].function.name",
            )
        if tool.function.strict:
            raise UnsupportedParameter(
                "Arguments are not constrained to the schema by this server; leave it out or "
                "send false.",
                param=f"tools[{index}].function.strict",
            )
    if fields.tool_choice not in (None, "none", "auto"):
        raise UnsupportedParameter(
            'Only "auto" and "none" are supported by this server.', param="tool_choice"
        )
    return bool(fields.tools) and fields.tool_choice != "none"


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidRequestError(f"At most {MAX_STOPS} stop strings.", param="stop")
    if not all(stops):
        raise InvalidRequestError("A stop string must not be empty.", param="stop")
    return stops


_SAMPLING: Mapping[str, Callable[[Any], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": lambda seed: seed % 2**64,  # OpenAI's is signed, Philox's is not
    "ignore_eos": bool,
}


def _sampling_params(
    fields: ChatFields | CompletionRequest,
    max_tokens: int,
    structured_outputs: StructuredOutputs | None,
    defaults: Mapping[str, float | int],
) -> SamplingParams:
    given = {
        name: convert(value)
        for name, convert in _SAMPLING.items()
        if (value := getattr(fields, name)) is not None
    }
    try:
        return SamplingParams(
            max_tokens=max_tokens, structured_outputs=structured_outputs, **{**defaults, **given}
        )
    except ValueError as exc:
        raise _field_error(exc, fields) from None


def _field_error(exc: ValueError, fields: ChatFields | CompletionRequest) -> InvalidRequestError:
    """``SamplingParams`` begins its messages with the field's name."""
    name, _, rule = str(exc).partition(" ")
    if name == "max_tokens" and fields.max_tokens is None:
        name = "max_completion_tokens"
    return InvalidRequestError(f"{name} {rule}.", param=name)
