from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequestError, UnsupportedParameter
from gateway.parsers.reasoning import THINK
from gateway.prompts.chat import ChatPrompts, Ending
from gateway.prompts.threads import LONG_CHARS, PromptThreads
from gateway.schemas.chat import ChatCompletionRequest, Message
from tests.gateway.serving import chat_body

THINKING = (
    "{{ messages[0].content }}|{% if enable_thinking is not false %}<think>\n"
    "{% else %}<think>\n\n</think>\n{% endif %}"
)
EFFORT = "{{ messages[0].content }} {{ reasoning_effort }} {{ verbosity }}"


TENANT = uuid4()


def prompts(model_dir: Path, source: str, *allowed: str) -> ChatPrompts:
    return ChatPrompts(
        ChatTemplate({"default": source}),
        Tokenizer.load(model_dir),
        PromptThreads(),
        allowed_kwargs=allowed,
        reasoning=THINK if source == THINKING else None,
    )


def request(**fields: Any) -> ChatCompletionRequest:
    return msgspec.convert(chat_body(**fields), ChatCompletionRequest)


@pytest.mark.asyncio
async def test_it_knows_whether_the_answer_begins_with_reasoning(model_dir: Path) -> None:
    made = prompts(model_dir, THINKING, "enable_thinking")
    messages = request().messages
    on = await made.encode(messages, tenant=TENANT)
    assert (on.begins_reasoning, on.ends_reasoning) == (True, False)
    assert await made.count(messages, tenant=TENANT) == (len(on.token_ids[0]), [])
    off = await made.encode(messages, tenant=TENANT, kwargs={"enable_thinking": False})
    assert (off.begins_reasoning, off.ends_reasoning) == (False, True)


STRIPPING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}"
)


@pytest.mark.asyncio
@pytest.mark.parametrize("begun", ["The", "The sky ", "</s>", "a\nb", "The The"])
async def test_a_begun_answer_is_continued(model_dir: Path, begun: str) -> None:
    """The prompt ends where it ends, whatever the template puts behind it, or strips."""
    made, tokenizer = prompts(model_dir, STRIPPING), Tokenizer.load(model_dir)
    messages = msgspec.convert(
        [{"role": "user", "content": begun}, {"role": "assistant", "content": begun}], list[Message]
    )
    (ids,) = (await made.encode(messages, tenant=TENANT, ending=Ending.CONTINUED)).token_ids
    expected = f"<user>{begun.strip()}</s><assistant>{begun}"
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    assert await made.count(messages, tenant=TENANT, ending=Ending.CONTINUED) == (len(ids), [])
    for last in (
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": ""},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}],
        },
    ):
        wrong = msgspec.convert([{"role": "user", "content": "x"}, last], list[Message])
        with pytest.raises(InvalidRequestError, match="continue"):
            await made.encode(wrong, tenant=TENANT, ending=Ending.CONTINUED)
    silent = prompts(model_dir, "{{ messages[0].content }}")
    with pytest.raises(UnsupportedParameter, match="does not show the end"):
        await silent.encode(messages, tenant=TENANT, ending=Ending.CONTINUED)


@pytest.mark.asyncio
async def test_a_long_chat_is_counted_unless_it_is_surely_too_long(model_dir: Path) -> None:
    made = prompts(model_dir, "{{ messages[0].content }}")
    text = "hello " * LONG_CHARS
    messages = msgspec.convert(chat_body(text), ChatCompletionRequest).messages
    long = await made.encode(messages, tenant=TENANT)
    tokenizer = Tokenizer.load(model_dir)
    assert long.token_ids == [tokenizer.encode(text)]
    assert await made.count(messages, tenant=TENANT) == (len(tokenizer.encode(text)), [])
    fits = -(-len(text) // tokenizer.max_token_bytes)
    assert await made.encode(messages, tenant=TENANT, max_model_len=fits) == long
    with pytest.raises(ContextLengthExceeded, match=f"{len(text)} characters") as caught:
        await made.encode(messages, tenant=TENANT, max_model_len=fits - 1)
    assert caught.value.param == "messages"


@pytest.mark.asyncio
async def test_special_tokens_in_a_message_are_read_as_the_readme_says(model_dir: Path) -> None:
    made = prompts(model_dir, "{{ messages[0].content }}")
    tokenizer = Tokenizer.load(model_dir)
    name = tokenizer.decode([min(tokenizer.special_ids)], skip_special_tokens=False)
    messages = msgspec.convert(chat_body(f"a{name}b"), ChatCompletionRequest).messages
    assert min(tokenizer.special_ids) in (await made.encode(messages, tenant=TENANT)).token_ids[0]


def test_variables_need_both_the_operator_and_the_template(model_dir: Path) -> None:
    made = prompts(model_dir, THINKING, "enable_thinking", "thinking")
    given = request(chat_template_kwargs={"enable_thinking": False})
    assert made.kwargs(given) == {"enable_thinking": False}
    for name, message in (("thinking", "no such variable"), ("messages", "enable_thinking")):
        with pytest.raises(UnsupportedParameter, match=message) as caught:
            made.kwargs(request(chat_template_kwargs={name: 1}))
        assert caught.value.param == f"chat_template_kwargs.{name}"
    values: list[object] = [[], {}, "x" * 257]
    for value in values:
        with pytest.raises(InvalidRequestError):
            made.kwargs(request(chat_template_kwargs={"enable_thinking": value}))


@pytest.mark.parametrize(
    ("effort", "expected"), [("none", False), ("minimal", True), ("high", True)]
)
def test_effort_turns_a_switch(model_dir: Path, effort: str, expected: bool) -> None:
    made = prompts(model_dir, THINKING)
    found = made.kwargs(request(reasoning_effort=effort))
    assert found == {"enable_thinking": expected}


def test_effort_and_verbosity_reach_a_template_that_knows_them(model_dir: Path) -> None:
    made = prompts(model_dir, EFFORT)
    found = made.kwargs(request(reasoning_effort="low", verbosity="high"))
    assert found == {"reasoning_effort": "low", "verbosity": "high"}


def test_what_a_template_does_not_know_is_ignored_unless_it_means_nothing(model_dir: Path) -> None:
    made = prompts(model_dir, "{{ messages }}")
    neutral = request(reasoning_effort="none", verbosity="medium")
    assert (made.kwargs(neutral), made.ignored(neutral)) == ({}, [])
    hints = request(reasoning_effort="low", verbosity="low")
    assert (made.kwargs(hints), made.ignored(hints)) == ({}, ["reasoning_effort", "verbosity"])
    assert prompts(model_dir, EFFORT).ignored(hints) == []
    assert prompts(model_dir, THINKING).ignored(hints) == ["verbosity"]
