from __future__ import annotations

import typing

from openai.types import completion_create_params as sdk

from gateway.admission import unsupported
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.sampling import SamplingFields

OURS = set(CompletionRequest.__struct_fields__)


def test_every_field_the_sdk_can_send_is_known() -> None:
    theirs = set(typing.get_type_hints(sdk.CompletionCreateParamsBase)) | {"stream"}
    assert theirs <= OURS
    assert len(theirs) >= 17


def test_each_field_is_acted_on_or_refused() -> None:
    acted_on = set(SamplingFields.__struct_fields__) | {
        "model", "prompt", "max_tokens", "n", "best_of", "echo", "logprobs", "stream",
        "stream_options", "resumable",
    }  # fmt: skip
    assert acted_on | set(unsupported.COMPLETIONS) == OURS
    assert not acted_on & set(unsupported.COMPLETIONS)
