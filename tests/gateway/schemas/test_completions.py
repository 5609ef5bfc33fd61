from __future__ import annotations

import typing

from openai.types import completion_create_params as sdk

from gateway.admission import UNSUPPORTED_IN_COMPLETIONS
from gateway.schemas.completions import CompletionRequest

OURS = set(CompletionRequest.__struct_fields__)


def test_every_field_the_sdk_can_send_is_known() -> None:
    theirs = set(typing.get_type_hints(sdk.CompletionCreateParamsBase)) | {"stream"}
    assert theirs <= OURS
    assert len(theirs) >= 17


def test_each_field_is_acted_on_or_refused() -> None:
    acted_on = {
        "model", "prompt", "max_tokens", "n", "echo", "stream", "stream_options", "temperature",
        "top_p", "stop", "seed", "user", "top_k", "min_p", "ignore_eos",
        "resumable",
    }  # fmt: skip
    assert acted_on | set(UNSUPPORTED_IN_COMPLETIONS) == OURS
    assert not acted_on & set(UNSUPPORTED_IN_COMPLETIONS)
