"""Completions, the older API: the request as clients send it.

As in ``schemas.chat`` every field of OpenAI's specification is declared; those this server cannot
act on are refused by name (``admission.UNSUPPORTED_IN_COMPLETIONS``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.schemas.chat import StreamOptions

Prompt = str | list[str | int | list[int]]
"""A text, a list of texts, token ids, or a list of those: ``text_prompt`` tells them apart."""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/completions``."""

    model: str
    prompt: Prompt
    max_tokens: int | None = None
    n: int | None = None
    echo: bool | None = None
    """Put the prompt before the answer."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    """Names the end user in log lines and in the ledger."""
    # Not OpenAI's; SDKs send them through ``extra_body``.
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    resumable: bool | None = None
    """The stream outlives its connection; see ``routes.streams``."""

    # Known, and refused by name unless they hold a value at which they mean nothing.
    best_of: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    presence_penalty: Any = None
    suffix: Any = None
