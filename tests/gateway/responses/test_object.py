"""The response object as it begins, field by field."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from engine.sampling_params import SamplingParams
from gateway.admission.admitted import Admitted
from gateway.responses.fields import decode_tools
from gateway.responses.object import response_object
from gateway.schemas.responses import ResponseFields

NOTHING_ASKED = {
    "id": "resp_1",
    "object": "response",
    "status": "in_progress",
    "background": False,
    "output": [],
    "completed_at": None,
    "error": None,
    "frequency_penalty": 0.0,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "m",
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": None,
    "user": None,
}


def made(
    admitted: Admitted | None = None, *, is_background: bool = False, **given: Any
) -> dict[str, Any]:
    fields = msgspec.json.decode(json.dumps({"input": "x", **given}), type=ResponseFields)
    tools, before = decode_tools(fields.tools), int(time.time())
    found = response_object(
        fields, tools, admitted, response_id="resp_1", model="m", is_background=is_background
    )
    assert before <= found.pop("created_at") <= time.time()
    found = json.loads(msgspec.json.encode(found))
    assert isinstance(found, dict)
    return found


def test_what_is_not_asked_for_has_its_usual_value() -> None:
    assert made() == NOTHING_ASKED


def test_what_is_asked_for_is_said_again() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.", "max_output_tokens": 7, "max_tool_calls": 2,
        "metadata": {"a": "b"}, "parallel_tool_calls": False, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "previous_response_id": "resp_0", "prompt_cache_key": "k",
        "safety_identifier": "s", "store": False, "temperature": 0.0, "top_p": 0.5,
        "tool_choice": "none", "top_logprobs": 3, "truncation": "auto", "user": "ann",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
    }  # fmt: skip
    background = {"status": "queued", "background": True}
    assert made(is_background=True, **asked) == NOTHING_ASKED | asked | background


def test_what_is_in_effect_counts() -> None:
    params = SamplingParams(temperature=0.25, top_p=0.75)
    admitted = cast(Admitted, SimpleNamespace(params=params, service_tier="flex"))
    effect = {"temperature": 0.25, "top_p": 0.75, "service_tier": "flex"}
    assert made(admitted, temperature=0.5) == NOTHING_ASKED | effect


@pytest.mark.parametrize("named", ["conv_1", {"id": "conv_1"}])
def test_its_conversation(named: Any) -> None:
    assert made(conversation=named) == NOTHING_ASKED | {"conversation": {"id": "conv_1"}}


def test_the_older_name_of_a_summary() -> None:
    found = made(reasoning={"generate_summary": "auto"})["reasoning"]
    assert found == {"effort": None, "summary": "auto"}


def test_tools_as_they_came_without_what_is_secret() -> None:
    function = {"type": "function", "name": "f", "parameters": {}, "strict": True}
    server = {"type": "mcp", "server_label": "w", "server_url": "https://w"}
    secret = {"headers": {"x": "1"}, "authorization": "s3cret", "require_approval": "never"}
    some = {"require_approval": {"never": {"tool_names": ["a"]}}, "allowed_tools": ["a"]}
    approval = {"always": None, "never": {"read_only": None, "tool_names": ["a"]}}
    shown = server | {"allowed_tools": None, "headers": None}
    first, *others = made(tools=[function, server, server | secret, server | some])["tools"]
    assert first == function | {"description": None}
    assert others == [
        shown | {"require_approval": "always"},
        shown | {"require_approval": "never"},
        shown | {"require_approval": approval, "allowed_tools": ["a"]},
    ]
