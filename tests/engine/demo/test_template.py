from __future__ import annotations

from typing import Any

import pytest
import transformers

from engine.demo import MODEL_DIR
from engine.demo.evaluate import held_out_examples
from engine.demo.template import TEMPLATE_FILE, render
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city, <b>now</b> & here",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "São Paulo"}'},
}
PARSED_CALL = {"function": {"name": "get_weather", "arguments": {"city": "São Paulo", "n": None}}}
TEXT_PART = {"type": "text", "text": "sunny"}
USER = {"role": "user", "content": "What is the weather?"}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one question": [USER],
    "system": [{"role": "system", "content": "Be kind."}, USER],
    "developer": [{"role": "developer", "content": "Be kind."}, USER],
    "an empty system prompt": [{"role": "system", "content": ""}, USER],
    "a late system prompt": [USER, {"role": "system", "content": "Be kind."}],
    "parts": [{"role": "user", "content": [TEXT_PART, {"type": "image_url"}, TEXT_PART]}],
    "an answer": [USER, {"role": "assistant", "content": "Sunny."}, USER],
    "no content": [USER, {"role": "assistant", "content": None}],
    "a call": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "a call without content": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
    "a call after words": [USER, {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]}],
    "a call with parsed arguments": [USER, {"role": "assistant", "tool_calls": [PARSED_CALL]}],
    "two calls": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL, PARSED_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"temperature": 3}'},
        {"role": "assistant", "content": "Sunny, then 3 °C."},
        USER,
    ],
    "a result first": [{"role": "tool", "content": "sunny"}],
    "a result in parts": [USER, {"role": "tool", "content": [TEXT_PART]}],
}


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, WEATHER]])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_renders_as_transformers_does(
    transformers_tokenizer: Any,
    name: str,
    add_generation_prompt: bool,
    tools: list[dict[str, Any]] | None,
) -> None:
    expected = transformers_tokenizer.apply_chat_template(
        CHATS[name], tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False
    )
    found = render(CHATS[name], tools or (), add_generation_prompt=add_generation_prompt)
    assert found == expected


def test_generated_prompts_have_the_ids_that_transformers_gives(
    transformers_tokenizer: Any,
) -> None:
    """Text and token ids, the way the gateway makes them, over all kinds of chats."""
    template, tokenizer = ChatTemplate.load(MODEL_DIR), Tokenizer.load(MODEL_DIR)
    for chat in held_out_examples(10):
        expected = transformers_tokenizer.apply_chat_template(
            chat.prompt, tools=chat.tools or None, add_generation_prompt=True, return_dict=False
        )
        text = template.render(chat.prompt, tools=chat.tools or None)
        assert text == render(chat.prompt, chat.tools, add_generation_prompt=True)
        assert tokenizer.encode(text, add_special_tokens=False) == expected


def test_the_bundled_template_is_the_one_trained_with() -> None:
    assert (MODEL_DIR / TEMPLATE_FILE.name).read_bytes() == TEMPLATE_FILE.read_bytes()


def test_a_chat_with_a_tool_reads_like_this() -> None:
    messages = CHATS["two calls"][:4]
    assert render(messages, [WEATHER], add_generation_prompt=True) == (
        "<|im_start|>system\n"
        "# Tools\n"
        "<tools>\n"
        '{"type": "function", "function": {"name": "get_weather", "description": '
        '"Weather in a city, <b>now</b> & here", "parameters": {"type": "object", '
        '"properties": {"city": {"type": "string"}}}}}\n'
        "</tools>\n"
        "Call a tool with\n"
        "<tool_call>\n"
        '{"name": <name>, "arguments": <arguments>}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n"
        "What is the weather?<|im_end|>\n"
        "<|im_start|>assistant\n"
        "<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "São Paulo"}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "São Paulo", "n": null}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n"
        "<tool_response>\n"
        "sunny\n"
        "</tool_response>\n"
        "<tool_response>\n"
        '{"temperature": 3}\n'
        "</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
