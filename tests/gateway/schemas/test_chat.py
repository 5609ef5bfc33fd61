from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from openai.types.chat import completion_create_params as sdk

from gateway.admission import unsupported
from gateway.schemas.chat import AssistantMessage, ChatCompletionRequest, Message
from gateway.schemas.sampling import SamplingFields

OURS = set(ChatCompletionRequest.__struct_fields__)


def test_every_field_the_sdk_can_send_is_known() -> None:
    """A new field of the SDK must be decided upon: acted on, or refused by name."""
    theirs = set(typing.get_type_hints(sdk.CompletionCreateParamsBase)) | {"stream"}
    assert theirs <= OURS
    assert len(theirs) >= 35


def test_each_field_is_acted_on_or_refused() -> None:
    acted_on = set(SamplingFields.__struct_fields__) | {
        "messages", "model", "max_completion_tokens", "max_tokens", "logprobs", "top_logprobs",
        "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity", "metadata",
        "safety_identifier", "prompt_cache_key", "service_tier", "chat_template_kwargs",
        "include_reasoning", "stream", "stream_options", "n", "resumable", "store", "prediction",
        "add_generation_prompt", "continue_final_message",
    }  # fmt: skip
    assert acted_on | set(unsupported.CHAT) | set(unsupported.HINTS) == OURS
    assert not acted_on & {*unsupported.CHAT, *unsupported.HINTS}
    assert not set(unsupported.CHAT) & set(unsupported.HINTS)


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_unknown_names_in_messages_are_refused(role: str) -> None:
    message = {"role": role, "content": "x", "tool_call_id": "c"}
    if role != "tool":
        del message["tool_call_id"]
    msgspec.convert(message, Message)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(message | {"zz": 1}, Message)


def test_our_own_answers_may_come_back_as_they_were() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": "hm",
    }
    assert isinstance(msgspec.convert(answer, Message), AssistantMessage)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(answer | {"function_call": {"name": "f"}}, Message)
