"""Fields with which a client describes its request: they are logged, and change nothing."""

from __future__ import annotations

import json
from itertools import islice

from gateway.admission.field_checks import MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE
from gateway.schemas.chat import ChatFields
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseFields

MAX_CHARS = 512
MAX_METADATA_CHARS = 2048


def client_notes(body: ChatFields | CompletionRequest | ResponseFields) -> dict[str, str]:
    """Fields for a log record, truncated because nothing is checked yet.

    Field names are ours alone: a client's own, as in ``metadata``, could forge a field.
    """
    notes: dict[str, str] = {}
    if body.user is not None:
        notes["user"] = body.user[:MAX_CHARS]
    if isinstance(body, CompletionRequest):
        return notes
    if body.safety_identifier is not None:
        notes["user"] = body.safety_identifier[:MAX_CHARS]
    if body.prompt_cache_key is not None:
        notes["prompt_cache_key"] = body.prompt_cache_key[:MAX_CHARS]
    if body.metadata:
        some = {
            key[:MAX_METADATA_KEY]: value[:MAX_METADATA_VALUE]
            for key, value in islice(body.metadata.items(), MAX_METADATA)
        }
        notes["metadata"] = json.dumps(some, ensure_ascii=False)[:MAX_METADATA_CHARS]
    return notes
