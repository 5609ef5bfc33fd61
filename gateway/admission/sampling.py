"""Turns the sampling fields of a request into the engine's ``SamplingParams``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.text.tokenizer import Tokenizer
from gateway.errors import InvalidRequestError
from gateway.schemas.chat import ChatFields
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.sampling import SamplingFields

MAX_STOPS = 4
MAX_STOP = 1024
"""Characters of a stop string. The search for it keeps a state for each of them."""
MAX_TOP_LOGPROBS = 20
MAX_BAD_WORDS = 64
MAX_WORD = 128
MAX_TOKEN_IDS = 1024
"""In each of ``logit_bias``, ``allowed_token_ids`` and ``stop_token_ids``."""
MAX_KEPT = 128
"""Size of the cache of ``SamplingParams``, which requests with the same fields share."""
LEAST_TOP_P = 1e-6
"""Replaces 0, which OpenAI allows and the engine does not. The most likely token of any vocabulary
has a higher probability, so it alone is kept."""

_RANGES: Mapping[str, tuple[float, float]] = {
    # OpenAI's.
    "temperature": (0, 2),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "seed": (-(2**63), 2**63 - 1),
    # vLLM's.
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
}
"""The other fields are checked by ``SamplingParams``."""

_READ_ELSEWHERE = {"stop", "logit_bias", "bad_words", "structured_outputs"}
_SAME: Sequence[str] = [
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingFields.__struct_fields__ and name not in _READ_ELSEWHERE
]
"""Fields that the engine knows by the same name."""

_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "top_p": lambda top_p: max(float(top_p), LEAST_TOP_P),
    "seed": lambda seed: seed % 2**64,  # OpenAI's is signed, Philox's is not
    "stop_token_ids": tuple,
    "allowed_token_ids": tuple,
}


class Sampling:
    """Reads the sampling fields of requests to one model."""

    def __init__(self, tokenizer: Tokenizer, defaults: Mapping[str, float | int]) -> None:
        """``defaults``: the values of fields that a request does not set."""
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._plain = lru_cache(MAX_KEPT)(self._make)

    def params(
        self,
        fields: ChatFields | CompletionRequest,
        *,
        max_tokens: int,
        structured_outputs: StructuredOutputs | None,
    ) -> SamplingParams:
        """The parameters that a request asks for. Raises ``InvalidRequestError`` naming the
        field."""
        _check_ranges(fields)
        given = {
            name: _CONVERTED[name](value) if name in _CONVERTED else value
            for name in _SAME
            if (value := getattr(fields, name)) is not None
        }
        self._check_token_ids(given)
        given |= _logprobs(fields)
        biases = self._logit_bias(fields.logit_bias)
        words = _bad_words(fields.bad_words, self._tokenizer)
        try:
            if structured_outputs is None and biases is None and not words:
                return self._plain(max_tokens=max_tokens, **given)
            return self._make(
                max_tokens=max_tokens,
                structured_outputs=structured_outputs,
                logit_bias=biases,
                **words,
                **given,
            )
        except ValueError as exc:
            raise _field_error(exc, fields) from None

    def _make(self, **given: Any) -> SamplingParams:
        return SamplingParams(**{**self._defaults, **given})

    def _logit_bias(self, biases: dict[str, float] | None) -> dict[int, float] | None:
        if not biases:
            return None
        _check_count("logit_bias", len(biases))
        found = {}
        for text, bias in biases.items():
            if not _is_token_id(text, self._tokenizer.vocab_size):
                raise InvalidRequestError(
                    "Keys are token ids of this model, from 0 to "
                    f"{self._tokenizer.vocab_size - 1}, got {text[:20]!r}.",
                    param="logit_bias",
                )
            found[int(text)] = float(bias)
        return found

    def _check_token_ids(self, given: Mapping[str, Any]) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            token_ids = given.get(name, ())
            _check_count(name, len(token_ids))
            for index, token_id in enumerate(token_ids):
                if not 0 <= token_id < self._tokenizer.vocab_size:
                    raise InvalidRequestError(
                        "Token ids of this model are from 0 to "
                        f"{self._tokenizer.vocab_size - 1}, got {token_id}.",
                        param=f"{name}[{index}]",
                    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request. Raises ``InvalidRequestError``."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidRequestError(f"At most {MAX_STOPS} stop strings.", param="stop")
    if not all(stops):
        raise InvalidRequestError("A stop string must not be empty.", param="stop")
    if any(len(text) > MAX_STOP for text in stops):
        raise InvalidRequestError(f"A stop string has at most {MAX_STOP} characters.", param="stop")
    return stops


def _check_ranges(fields: SamplingFields) -> None:
    for name, (least, most) in _RANGES.items():
        value = getattr(fields, name)
        if value is not None and not least <= value <= most:
            raise InvalidRequestError(
                f"{name} must be from {least} to {most}, got {value}.", param=name
            )


def _is_token_id(text: str, vocab_size: int) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(vocab_size))
    return is_number and int(text) < vocab_size


def _check_count(name: str, count: int) -> None:
    if count > MAX_TOKEN_IDS:
        raise InvalidRequestError(f"At most {MAX_TOKEN_IDS} token ids.", param=name)


def _bad_words(words: list[str] | None, tokenizer: Tokenizer) -> dict[str, Any]:
    if not words:
        return {}
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequestError(f"At most {MAX_BAD_WORDS} words.", param="bad_words")
    if not all(word.strip() and len(word) <= MAX_WORD for word in words):
        raise InvalidRequestError(f"A word has from 1 to {MAX_WORD} characters.", param="bad_words")
    return {"bad_words_token_ids": tokenizer.bad_words_token_ids(words)}


def _logprobs(fields: ChatFields | CompletionRequest) -> dict[str, Any]:
    if isinstance(fields, ChatFields):
        number = _top_logprobs(fields)
        return {} if number is None else {"logprobs": number}
    if fields.logprobs is None:
        return {}
    _check_logprobs("logprobs", fields.logprobs)
    wanted = {"logprobs": fields.logprobs}
    return wanted | {"prompt_logprobs": fields.logprobs} if fields.echo else wanted


def _top_logprobs(fields: ChatFields) -> int | None:
    if not fields.logprobs:
        if fields.top_logprobs:
            raise InvalidRequestError("Only allowed when logprobs is true.", param="top_logprobs")
        return None
    number = fields.top_logprobs or 0
    _check_logprobs("top_logprobs", number)
    return number


def _check_logprobs(name: str, number: int) -> None:
    if not 0 <= number <= MAX_TOP_LOGPROBS:
        raise InvalidRequestError(
            f"Must be from 0 to {MAX_TOP_LOGPROBS}, got {number}.", param=name
        )


def _field_error(exc: ValueError, fields: SamplingFields) -> InvalidRequestError:
    """Translate an error of ``SamplingParams``, whose messages begin with the field's name."""
    name, _, rule = str(exc).partition(" ")
    if name == "max_tokens" and getattr(fields, "max_tokens", None) is None:
        name = "max_completion_tokens"
    return InvalidRequestError(f"{name} {rule}.", param=name)
