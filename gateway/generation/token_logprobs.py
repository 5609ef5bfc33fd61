"""Log-probabilities in the form of Chat Completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.messages import TokenLogprobs
from engine.text.tokenizer import Tokenizer

UNLIKELY = -9999.0
"""What OpenAI writes for the logarithm of 0, which JSON cannot represent."""


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]
    """UTF-8; a character may be spread over several tokens."""


class TokenLogprob(TopLogprob, frozen=True, gc=False):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]
    """The most likely tokens at this position, best first."""


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    content: Sequence[TokenLogprob]
    refusal: None = None


def named(found: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[TokenLogprob]:
    """The engine's log-probabilities, with the tokens' texts."""
    return [
        TokenLogprob(
            *_token(one.token_id, one.logprob, tokenizer),
            [TopLogprob(*_token(token_id, logprob, tokenizer)) for token_id, logprob in one.top],
        )
        for one in found
    ]


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> tuple[str, float, list[int]]:
    data = tokenizer.token_bytes(token_id)
    return data.decode(errors="replace"), max(logprob, UNLIKELY), list(data)
