"""Turns the prompts of a text completion, in their four notations, into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from engine.text.tokenizer import Tokenizer
from gateway.errors import InvalidRequestError
from gateway.prompts.prompt import Echo, Prompt
from gateway.prompts.threads import PromptThreads, check_length
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.completions import Prompt as Spelling

MAX_PROMPTS = 32
LONG_PROMPT_CHARS = 4096
"""Prompts of this length or more are tokenized in a thread; shorter ones take the event loop a few
milliseconds at most."""


async def read(
    request: CompletionRequest,
    tokenizer: Tokenizer,
    threads: PromptThreads,
    *,
    tenant: UUID,
    max_model_len: int,
) -> Prompt:
    """Tokenize the prompts of a request; there is at least one.

    Raises ``InvalidRequestError`` with the path of the prompt at fault, and
    ``ContextLengthExceeded`` for a text that is certainly longer than ``max_model_len`` tokens.
    """
    prompt = request.prompt
    found = spellings(prompt, param="prompt")
    if len(found) > MAX_PROMPTS:
        raise InvalidRequestError(f"At most {MAX_PROMPTS} prompts.", param="prompt")

    for spelling in found:
        if isinstance(spelling, str):
            check_length(spelling, tokenizer, max_model_len, param="prompt")

    def encode() -> Prompt:
        is_list = len(found) > 1 or prompt is found
        token_ids = [
            _encode(spelling, tokenizer, param=f"prompt[{index}]" if is_list else "prompt")
            for index, spelling in enumerate(found)
        ]
        pairs = zip(found, token_ids, strict=True)
        echoes = [_echo(request, spelling, ids, tokenizer) for spelling, ids in pairs]
        return Prompt(token_ids, is_chat=False, echoes=echoes)

    size = sum(map(len, found))
    if size < LONG_PROMPT_CHARS:
        return encode()
    return await threads.run(encode, tenant=tenant, size=size)


def spellings(prompt: Spelling, *, param: str) -> Sequence[str | list[int]]:
    """The texts and token ids in any of the four notations; ``prompt`` itself if it is a list of
    them. Raises ``InvalidRequestError``."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return prompt  # type: ignore[return-value]
    raise InvalidRequestError(
        "Must be a text, a list of texts, token ids or a list of lists of token ids.",
        param=param,
    )


def _encode(spelling: str | list[int], tokenizer: Tokenizer, *, param: str) -> list[int]:
    if isinstance(spelling, str):
        token_ids = tokenizer.encode(spelling)
    else:
        check_ids(spelling, tokenizer.vocab_size, param=param)
        token_ids = spelling
    if not token_ids:
        raise InvalidRequestError("Must hold at least one token.", param=param)
    return token_ids


def _echo(
    request: CompletionRequest, spelling: str | list[int], ids: list[int], tokenizer: Tokenizer
) -> Echo:
    if not request.echo:
        return Echo()
    if isinstance(spelling, str):
        text = spelling
    else:
        text = tokenizer.decode(ids, skip_special_tokens=False)
    if request.logprobs is None:
        return Echo(text)
    return Echo(text, tokenizer.token_bytes(ids[0]).decode(errors="replace"))


def check_ids(token_ids: list[int], vocab_size: int, *, param: str) -> None:
    """Raise ``InvalidRequestError`` for an id that the model does not have."""
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"Token ids of this model are from 0 to {vocab_size - 1}, got {token_id}.",
                param=f"{param}[{index}]",
            )
