"""Turns the prompts of a text completion, in their four notations, into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from engine.text.tokenizer import Tokenizer
from gateway.errors import InvalidRequestError
from gateway.prompts.threads import PromptThreads, check_length
from gateway.schemas.completions import Prompt

MAX_PROMPTS = 32
LONG_PROMPT_CHARS = 4096
"""Prompts of this length or more are tokenized in a thread; shorter ones take the event loop a few
milliseconds at most."""


class TextPrompt(msgspec.Struct, frozen=True):
    token_ids: list[int]
    text: str = ""
    """The prompt as it was sent. If it was sent as ids, their text where it is wanted."""


class Echo(msgspec.Struct, frozen=True):
    """The prompt as it is repeated before an answer, if the request sets ``echo``."""

    text: str = ""
    first_token: str = ""
    """With log-probabilities, the text of the prompt's first token, which has none."""


async def read(
    prompt: Prompt,
    tokenizer: Tokenizer,
    threads: PromptThreads,
    *,
    tenant: UUID,
    max_model_len: int,
    wants_text: bool,
) -> list[TextPrompt]:
    """Tokenize the prompts of a request; there is at least one.

    ``wants_text``: decode prompts that were sent as ids. Raises ``InvalidRequestError`` with the
    path of the prompt at fault, and ``ContextLengthExceeded`` for a text that is certainly longer
    than ``max_model_len`` tokens.
    """
    spellings = _spellings(prompt)
    if len(spellings) > MAX_PROMPTS:
        raise InvalidRequestError(f"At most {MAX_PROMPTS} prompts.", param="prompt")

    for spelling in spellings:
        if isinstance(spelling, str):
            check_length(spelling, tokenizer, max_model_len, param="prompt")

    def encode() -> list[TextPrompt]:
        is_list = len(spellings) > 1 or prompt is spellings
        return [
            _encode(
                spelling,
                tokenizer,
                wants_text=wants_text,
                param=f"prompt[{index}]" if is_list else "prompt",
            )
            for index, spelling in enumerate(spellings)
        ]

    size = sum(map(len, spellings))
    if size < LONG_PROMPT_CHARS:
        return encode()
    return await threads.run(encode, tenant=tenant, size=size)


def _spellings(prompt: Prompt) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return prompt  # type: ignore[return-value]
    raise InvalidRequestError(
        "Must be a text, a list of texts, token ids or a list of lists of token ids.",
        param="prompt",
    )


def _encode(
    spelling: str | list[int], tokenizer: Tokenizer, *, wants_text: bool, param: str
) -> TextPrompt:
    if isinstance(spelling, str):
        found = TextPrompt(tokenizer.encode(spelling), spelling)
    else:
        check_ids(spelling, tokenizer.vocab_size, param=param)
        text = tokenizer.decode(spelling, skip_special_tokens=False) if wants_text else ""
        found = TextPrompt(spelling, text)
    if not found.token_ids:
        raise InvalidRequestError("Must hold at least one token.", param=param)
    return found


def check_ids(token_ids: list[int], vocab_size: int, *, param: str) -> None:
    """Raise ``InvalidRequestError`` for an id that the model does not have."""
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"Token ids of this model are from 0 to {vocab_size - 1}, got {token_id}.",
                param=f"{param}[{index}]",
            )
