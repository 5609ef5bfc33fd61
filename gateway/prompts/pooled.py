"""Turns the texts of requests for vectors and scores into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from engine.pooling import PoolingModel
from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequestError
from gateway.prompts import texts
from gateway.prompts.threads import PromptThreads, check_length
from gateway.schemas.embeddings import EmbeddingInput

MAX_INPUTS = 2048
"""As many as in OpenAI's API."""
_AT_ONCE = 64
"""Inputs whose tokens are counted before the next ones are tokenized."""


class Input(NamedTuple):
    """What one vector or score is made of: a text, token ids, or two texts."""

    content: str | list[int] | tuple[str, str]
    param: str
    """Where it stands in the request."""
    max_tokens: int | None = None
    """Cut the text, or the second one, to so many tokens."""


class Encoded(NamedTuple):
    token_ids: list[int]
    second_text: int | None
    """As in ``PoolingParams``."""


def of_embeddings(asked: EmbeddingInput, prompt: str) -> list[Input]:
    """``prompt`` goes before each text. Raises ``InvalidRequestError``."""
    spellings = texts.spellings(asked, param="input")
    is_list = spellings is asked
    return [
        Input(prompt + one if isinstance(one, str) else one, f"input[{i}]" if is_list else "input")
        for i, one in enumerate(spellings)
    ]


def of_pairs(ones: Sequence[Input], others: Sequence[Input], pooling: PoolingModel) -> list[Input]:
    """What is computed to compare each of ``others`` with the one of ``ones`` at its place, or with
    the only one. A cross-encoder reads pairs. For vectors, the texts of ``ones`` come first, then
    those of ``others``."""
    if pooling.task == "score":
        pairs = zip([*ones] * len(others) if len(ones) == 1 else ones, others, strict=True)
        return [
            Input((_text(one), _text(other)), other.param, other.max_tokens) for one, other in pairs
        ]
    default = pooling.default_prompt
    query, document = (pooling.prompts.get(name, default) for name in ("query", "document"))
    return [
        *(Input(query + _text(one), one.param) for one in ones),
        *(Input(document + _text(other), other.param, other.max_tokens) for other in others),
    ]


def _text(one: Input) -> str:
    assert isinstance(one.content, str)
    return one.content


def _cut(one: Input, tokenizer: Tokenizer) -> Input:
    if one.max_tokens is None or isinstance(one.content, list):
        return one
    if isinstance(one.content, str):
        return one._replace(content=tokenizer.cut(one.content, one.max_tokens))
    first, second = one.content
    return one._replace(content=(first, tokenizer.cut(second, one.max_tokens)))


async def encode(
    inputs: Sequence[Input],
    tokenizer: Tokenizer,
    threads: PromptThreads,
    *,
    vocab_size: int,
    tenant: UUID,
    max_model_len: int,
) -> list[Encoded]:
    """Raises ``InvalidRequestError`` or ``ContextLengthExceeded`` with the input's place."""
    if not inputs:
        raise InvalidRequestError("Must not be empty.", param="input")
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequestError(
            f"At most {MAX_INPUTS} in one request.", param=inputs[-1].param.partition("[")[0]
        )
    for one in inputs:
        for text in one.content if isinstance(one.content, tuple) else (one.content,):
            if isinstance(text, str):
                check_length(text, tokenizer, max_model_len, param=one.param)
            else:
                texts.check_ids(text, vocab_size, param=one.param)

    def work() -> list[Encoded]:
        # A query stands in each pair: one that is too long is refused before it has been read, and
        # held, a thousand times.
        parts = [inputs[start : start + _AT_ONCE] for start in range(0, len(inputs), _AT_ONCE)]
        return [one for part in parts for one in _encoded(part, tokenizer, max_model_len)]

    size = sum(map(_num_chars, inputs))
    if size < texts.LONG_PROMPT_CHARS:
        return work()
    return await threads.run(work, tenant=tenant, size=size)


def _encoded(inputs: Sequence[Input], tokenizer: Tokenizer, max_model_len: int) -> list[Encoded]:
    whole = [_cut(one, tokenizer) for one in inputs]
    plain = [one.content for one in whole if isinstance(one.content, str)]
    pairs = [one.content for one in whole if isinstance(one.content, tuple)]
    of_text = iter(tokenizer.encode_batch(plain) if plain else ())
    of_pair = iter(tokenizer.encode_pairs(pairs) if pairs else ())
    found = []
    for one in whole:
        if isinstance(one.content, str):
            encoded = Encoded(next(of_text), None)
        elif isinstance(one.content, tuple):
            encoded = Encoded(*next(of_pair))
        else:
            encoded = Encoded(one.content, None)
        _check(encoded.token_ids, one.param, max_model_len)
        found.append(encoded)
    return found


def _num_chars(one: Input) -> int:
    """What has to be read; token ids have been."""
    parts = one.content if isinstance(one.content, tuple) else (one.content,)
    return sum(len(part) for part in parts if isinstance(part, str))


def _check(token_ids: list[int], param: str, max_model_len: int) -> None:
    if not token_ids:
        raise InvalidRequestError("Must hold at least one token.", param=param)
    if len(token_ids) > max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your {param} "
            f"resulted in {len(token_ids)} tokens. Please reduce the length of the {param}.",
            param=param,
        )
