"""Completions, the older API: the request as clients send it.

As in ``schemas.chat`` every field of OpenAI's specification is declared; those this server cannot
act on are refused by name (``admission.unsupported``).
"""

from __future__ import annotations

from typing import Any

from gateway.schemas.chat import StreamOptions
from gateway.schemas.sampling import SamplingFields

Prompt = str | list[str | int | list[int]]
"""A text, a list of texts, token ids, or a list of those: ``prompts.texts`` tells them apart."""


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/completions``."""

    model: str
    prompt: Prompt
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    """Only as many as ``n``: none is thrown away."""
    echo: bool | None = None
    """Put the prompt before the answer."""
    logprobs: int | None = None
    """Return the log-probability of each token, and of this many most likely ones at its
    position."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    resumable: bool | None = None
    """The stream outlives its connection; see ``routes.streams``."""

    # Known, and refused by name unless it holds a value at which it means nothing.
    suffix: Any = None
