from __future__ import annotations

from typing import Any

import pytest

from gateway.generation.delta import Delta
from gateway.generation.token_logprobs import TokenLogprob
from gateway.parsers.base import call_goes_on


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x"},
        {"tool_calls": [call_goes_on(0, "{")]},
        {"finish_reason": "stop"},
        {"reasoning": "hm"},
        {"logprobs": [TokenLogprob("x", -0.5, [120], [])]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_delta_with_anything_for_the_client_is_not_empty(fields: dict[str, Any]) -> None:
    assert not Delta(0, **fields).is_empty
    assert Delta(0).is_empty
