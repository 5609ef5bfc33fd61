"""What the fields of a chat do, as far as the engine and the client see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.spec.config import SpeculativeConfig
from engine.text.tokenizer import Tokenizer
from gateway.admission.priorities import FLEX
from tests.gateway.engine_double import EngineDouble, Play, says
from tests.gateway.raw_http import chat, events, exchange, post
from tests.gateway.serving import Gateway, chat_body, served_double
from tests.gateway.ws_client import ready

pytestmark = pytest.mark.asyncio

THINKING = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endfor -%}
{%- if tools %}{{ tools | length }} tools{% endif -%}
<|im_start|>assistant
{% if enable_thinking is false %}<think>

</think>

{% endif -%}
"""
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@asynccontextmanager
async def served_template(
    model_dir: Path, folder: Path, template: str
) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    model = shutil.copytree(model_dir, folder / "model")
    (model / "chat_template.jinja").write_text(template)
    async with served_double(model) as pair:
        yield pair


async def choice_of(gateway: Gateway, **fields: Any) -> Any:
    answer = await chat(gateway, chat_body(**fields))
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]


async def test_a_begun_answer_is_continued(gateway: Gateway, double: EngineDouble) -> None:
    double.script = says(" blue.")
    asked = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "The sky is"}]
    choice = await choice_of(gateway, messages=asked, continue_final_message=True)
    assert choice["message"]["content"] == " blue."
    assert double.prompt().endswith("<|im_start|>assistant\nThe sky is")
    body = {"model": "tiny", "max_tokens": 9, "messages": asked}
    answer = await exchange(
        gateway,
        post(gateway, json.dumps(body).encode()).replace(b"/v1/chat/completions", b"/v1/messages"),
    )
    assert answer.json()["content"] == [{"type": "text", "text": " blue."}]
    assert double.prompt(0) == double.prompt(1)
    await choice_of(gateway, messages=asked, add_generation_prompt=False)
    assert double.prompt().endswith("The sky is<|im_end|>")
    both: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": True}
    refused = await chat(gateway, chat_body(messages=asked, **both))
    assert refused.error["param"] == "add_generation_prompt"


async def test_a_prediction_reaches_an_engine_that_can_use_it(model_dir: Path) -> None:
    prediction = {"type": "content", "content": [{"type": "text", "text": "abc"}]}
    for method, ids in (("ngram", list(b"abc")), (None, [])):
        engine = (
            {}
            if method is None
            else {"speculative_config": SpeculativeConfig(method="ngram", num_speculative_tokens=2)}
        )
        async with served_double(model_dir, engine=engine) as (gateway, double):
            answer = await chat(gateway, chat_body(prediction=prediction))
            tokenizer = Tokenizer.load(model_dir)
            assert double.requests[0].prediction_token_ids == [
                token for byte in bytes(ids) for token in tokenizer.encode(chr(byte))
            ]
            ignored = answer.headers.get("x-sluice-ignored", "")
            assert ("prediction" in ignored) is (method is None)
            wrong = {
                "type": "content",
                "content": [{"type": "image_url", "image_url": {"url": "data:"}}],
            }
            refused = await chat(gateway, chat_body(prediction=wrong))
            assert refused.error["param"] == "prediction.content[0]"


async def test_sampling_fields_reach_the_engine(gateway: Gateway, double: EngineDouble) -> None:
    await choice_of(
        gateway,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias={"65": -100},
        allowed_token_ids=[65, 66],
        bad_words=["x"],
        stop_token_ids=[67],
        min_tokens=2,
    )
    params = double.requests[0].params
    assert (params.frequency_penalty, params.presence_penalty) == (0.5, -0.5)
    assert params.repetition_penalty == 1.25
    assert params.logit_bias == {65: -100.0}
    assert params.allowed_token_ids == (65, 66)
    assert params.bad_words_token_ids
    assert (params.stop_token_ids, params.min_tokens) == ((67,), 2)


async def test_logprobs_stand_beside_their_text(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="Hé")
    choice = await choice_of(gateway, logprobs=True, top_logprobs=2)
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in content) == "Hé".encode()
    assert [len(token["top_logprobs"]) for token in content] == [2, 2, 2]
    body = chat_body(logprobs=True, stream=True)
    chunks = events((await chat(gateway, body)).body)[1:-2]
    streamed = [t for c in chunks for t in c["choices"][0]["logprobs"]["content"]]
    assert [token["bytes"] for token in streamed] == [token["bytes"] for token in content]


@pytest.mark.parametrize("at_once", [False, True])
async def test_logprobs_end_where_a_stop_string_ends_the_text(
    gateway: Gateway, double: EngineDouble, at_once: bool
) -> None:
    double.script = lambda prompt: Play(text="abcdef", at_once=at_once)
    choice = await choice_of(gateway, logprobs=True, stop="d")
    assert choice["message"]["content"] == "abc"
    assert [token["token"] for token in choice["logprobs"]["content"]] == list("abcd")


async def test_a_stop_string_can_be_kept(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="abcdef")
    choice = await choice_of(gateway, stop="d", include_stop_str_in_output=True)
    assert choice["message"]["content"] == "abcd"


async def test_special_tokens_can_be_shown(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="a<|im_start|>b")
    assert (await choice_of(gateway))["message"]["content"] == "ab"
    shown = await choice_of(gateway, skip_special_tokens=False)
    assert shown["message"]["content"] == "a<|im_start|>b"


async def test_one_call_at_most(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text=f"{CALL}\n{CALL}\nmore and more", interval_s=0.001)
    both = await choice_of(gateway, tools=TOOLS)
    assert len(both["message"]["tool_calls"]) == 2
    one = await choice_of(gateway, tools=TOOLS, parallel_tool_calls=False)
    assert len(one["message"]["tool_calls"]) == 1
    assert json.loads(one["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert one["finish_reason"] == "tool_calls"
    assert len(double.aborted) == 1, "what follows is not generated"


async def test_service_tiers_and_priorities(gateway: Gateway, double: EngineDouble) -> None:
    for fields in ({}, {"service_tier": "flex"}, {"priority": 3}, {"service_tier": "auto"}):
        answer = (await chat(gateway, chat_body(**fields))).json()
        tier = fields.get("service_tier")
        assert answer.get("service_tier") == {"auto": "default"}.get(str(tier), tier)
    base = gateway.tenant.priority
    priorities = [request.priority for request in double.requests]
    assert priorities == [base, base + FLEX, base + 3, base]


async def test_a_cache_salt_divides_the_tenants_own_region(
    gateway: Gateway, double: EngineDouble
) -> None:
    for salt in (None, "a", "a", "b"):
        await choice_of(gateway, cache_salt=salt)
    salts = [request.cache_salt for request in double.requests]
    assert salts[1] == salts[2]
    assert len(set(salts)) == 3
    assert not {"a", "b"} & set(salts)
    assert (await chat(gateway, chat_body(cache_salt="x" * 257))).error["param"] == "cache_salt"


async def test_the_newer_name_of_user_is_in_the_ledger(gateway: Gateway) -> None:
    await choice_of(gateway, safety_identifier="someone", prompt_cache_key="k", user="someone")
    await choice_of(gateway, safety_identifier="someone")
    assert (await gateway.usage(2)).requests == 2


async def test_reasoning_is_told_apart(model_dir: Path, tmp_path: Path) -> None:
    async with served_template(model_dir, tmp_path, THINKING) as (gateway, double):
        double.script = lambda prompt: Play(text="<think>\nHm, é.\n</think>\n\nYes.")
        answer = (await chat(gateway, chat_body())).json()
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm, é.", "Yes.")
        details = answer["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == len("\nHm, é.\n</think>".encode())
        chunks = events((await chat(gateway, chat_body(stream=True))).body)[:-1]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm, é."
        assert "".join(d.get("content", "") for d in deltas) == "Yes."
        hidden = await choice_of(gateway, include_reasoning=False)
        assert "reasoning_content" not in hidden["message"]
        assert hidden["message"]["content"] == "Yes."
        async with ready(gateway) as client:
            await client.chat("t")
            frames = await client.turn("t")
        assert "".join(f.get("reasoning_content", "") for f in frames) == "Hm, é."


async def test_reasoning_can_be_turned_off(model_dir: Path, tmp_path: Path) -> None:
    async with served_template(model_dir, tmp_path, THINKING) as (gateway, double):
        double.script = lambda prompt: Play(text="Yes.")
        for fields in (
            {"reasoning_effort": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ):
            choice = await choice_of(gateway, **fields)
            assert choice["message"]["content"] == "Yes."
            assert double.prompt().endswith("</think>\n\n")
        await choice_of(gateway, reasoning_effort="high")
        assert "think" not in double.prompt()


async def test_a_format_holds_after_the_reasoning(model_dir: Path, tmp_path: Path) -> None:
    async with served_template(model_dir, tmp_path, THINKING) as (gateway, double):
        double.script = lambda prompt: Play(text="<think>hm</think>{}")
        wanted = {"response_format": {"type": "json_object"}}
        await choice_of(gateway, **wanted)
        outputs = double.requests[0].params.structured_outputs
        assert outputs is not None
        assert double.tokenizer.decode(outputs.reasoning_end_token_ids) == "</think>"
        await choice_of(gateway, **wanted, reasoning_effort="none")
        outputs = double.requests[1].params.structured_outputs
        assert outputs is not None
        assert outputs.reasoning_end_token_ids == ()


async def test_what_is_not_enforced_is_checked_and_told(
    gateway: Gateway, double: EngineDouble
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for text, valid in (("[1, 2]", True), ("[1, 1]", False), ("[1", False)):
        double.script = says(text)
        report = (await choice_of(gateway, response_format=wanted))["structured_outputs"]
        assert report["unenforced"] == [{"keyword": "uniqueItems", "path": "$.uniqueItems"}]
        assert report["valid"] is valid
        assert bool(report["violations"]) is not valid
        async with ready(gateway) as client:
            await client.chat("t", response_format=wanted)
            done = (await client.turn("t"))[-1]
        assert done["structured_outputs"] == report
    outputs = double.requests[0].params.structured_outputs
    assert outputs is not None
    assert not outputs.strict


async def test_beside_tools_the_answer_is_checked_as_well(
    gateway: Gateway, double: EngineDouble
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    double.script = lambda prompt: Play(text="[1, 1]")
    report = (await choice_of(gateway, tools=TOOLS, response_format=wanted))["structured_outputs"]
    assert report["unenforced"] == [{"keyword": "uniqueItems", "path": "$.uniqueItems"}]
    assert report["valid"] is False
    double.script = lambda prompt: Play(text=CALL)
    choice = await choice_of(gateway, tools=TOOLS, response_format=wanted)
    assert choice["finish_reason"] == "tool_calls"
    assert "structured_outputs" not in choice


LOOSE_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "array", "uniqueItems": True}},
        },
    },
}


@pytest.mark.parametrize(
    ("pattern", "valid"),
    [
        (r"^\p{L}+$", True),
        (r"^\p{Emoji}+$", False),
        (r"^(?<=^a?)é+$", True),
        (r"^\p{RGI_Emoji}$", False),
    ],
)
async def test_patterns_that_python_cannot_read(
    gateway: Gateway, double: EngineDouble, pattern: str, valid: bool
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    function = {"name": "f", "parameters": parameters}
    double.script = says(CALL.replace("1", '"é"'))
    choice = await choice_of(gateway, tools=[{"type": "function", "function": function}])
    assert choice["structured_outputs"]["valid"] is valid
    assert choice["structured_outputs"]["unenforced"] == [
        {"keyword": "parameters", "path": "$", "function": "f"}
    ]
    strict = {
        "strict": True,
        "name": "f",
        "parameters": parameters | {"required": ["a"], "additionalProperties": False},
    }
    answer = await chat(
        gateway, chat_body(tools=[{"type": "function", "function": strict}], tool_choice="required")
    )
    if pattern == r"^\p{L}+$":
        assert answer.status == 200
    else:
        assert (answer.status, answer.error["param"]) == (400, "tools")
        assert "/properties/a/pattern" in answer.error["message"]


@pytest.mark.parametrize(
    ("fields", "unenforced"),
    [
        ({}, ("parameters", "$")),
        ({"tool_choice": "required"}, ("uniqueItems", "$.properties.a.uniqueItems")),
        ({"response_format": {"type": "json_object"}}, ("parameters", "$")),
    ],
)
async def test_arguments_that_nothing_held_to_their_schema_are_checked(
    gateway: Gateway, double: EngineDouble, fields: dict[str, Any], unenforced: tuple[str, str]
) -> None:
    """Streamed or not, over HTTP and WebSockets."""
    keyword, path = unenforced
    for arguments, valid in (("[1]", True), ("[1, 1]", False)):
        text = CALL.replace("1", arguments)
        double.script = says(text)
        choice = await choice_of(gateway, tools=[LOOSE_TOOL], **fields)
        report = choice["structured_outputs"]
        assert report["unenforced"] == [{"keyword": keyword, "path": path, "function": "f"}]
        assert report["valid"] is valid
        calls = choice["message"]["tool_calls"]
        where = [(violation["call_id"], violation["path"]) for violation in report["violations"]]
        assert where == ([] if valid else [(calls[0]["id"], "$.a")])
        streamed = await chat(gateway, chat_body(stream=True, tools=[LOOSE_TOOL], **fields))
        last = [event for event in events(streamed.body) if event != "[DONE]"][-1]
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert last["choices"][0]["structured_outputs"]["valid"] is valid
        async with ready(gateway) as client:
            await client.chat("t", tools=[LOOSE_TOOL], **fields)
            done = (await client.turn("t"))[-1]
        assert done["structured_outputs"]["valid"] is valid


async def test_arguments_of_strict_functions_need_no_check(
    gateway: Gateway, double: EngineDouble
) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    strict = {
        "type": "function",
        "function": {"name": "f", "strict": True, "parameters": parameters},
    }
    double.script = lambda prompt: Play(text=CALL)
    assert "structured_outputs" not in await choice_of(gateway, tools=[strict])


@pytest.mark.parametrize("strict", [True, False, None])
async def test_an_invalid_schema_of_arguments_is_refused_with_its_place(
    gateway: Gateway, strict: bool | None
) -> None:
    function: dict[str, Any] = {
        "name": "f",
        "parameters": {"properties": {"a": {"type": "text"}}},
    }
    if strict is not None:
        function["strict"] = strict
    tools = [{"type": "function", "function": function}]
    answer = await chat(gateway, chat_body(tools=tools))
    assert (answer.status, answer.error["param"]) == (400, "tools[0].function.parameters")
    assert "/properties/a/type" in answer.error["message"]


async def test_models_without_tools_in_their_template(model_dir: Path, tmp_path: Path) -> None:
    plain = "{{ messages[0].content }}<|im_start|>assistant\n"
    async with served_template(model_dir, tmp_path, plain) as (gateway, _):
        answer = await chat(gateway, chat_body(tools=TOOLS))
        assert (answer.status, answer.error["param"]) == (400, "tools")


async def test_padded_chunks(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="Hi there")
    body = chat_body(stream=True, stream_options={"include_obfuscation": True})
    answer = await chat(gateway, body)
    blocks = [block + b"\n\n" for block in answer.body.split(b"\n\n")[1:-2]]
    assert blocks
    assert all(len(block) % 64 == 0 for block in blocks)
