"""``GET /v1/models``, with the fields that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

import msgspec

from gateway.schemas.shown import IdList


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str
    parent: str | None = None
    """For an adapter, the model that it changes (a field of vLLM's)."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together (vLLM's field); None while the engine loads."""
    input_modalities: list[str]
    """With ``image`` for a model that sees (OpenRouter's name)."""
    type: str = "model"
    display_name: str
    created_at: str
    """``created`` as Anthropic writes it (RFC 3339)."""


class ModelList(IdList[Model], frozen=True, kw_only=True):
    """Those that a key may use."""
