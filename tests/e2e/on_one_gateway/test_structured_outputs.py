"""What an answer must look like, from the request to the sampled token, on the real engine."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.serving import MODEL, Gateway

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ONE_OR_TWO = {"type": "integer", "minimum": 1, "maximum": 2}
UNIQUE = {
    "type": "object",
    "properties": {
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[ab]$"},
            "minItems": 3,
            "maxItems": 3,
            "uniqueItems": True,
        }
    },
    "required": ["tags"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


def json_schema(schema: object, *, strict: bool | None = None) -> Any:
    wanted = {"name": "answer", "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": wanted}


async def say(client: AsyncOpenAI, **fields: Any) -> Any:
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, **({"max_tokens": 200} | fields)
    )
    return answer.choices[0]


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"structured_outputs": {"regex": "[ab]{4}-[0-9]{2}"}}, r"[ab]{4}-[0-9]{2}"),
    "choice": ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
    "grammar": ({"structured_outputs": {"grammar": 'start: "x" ("y" | "z") "x"'}}, "x[yz]x"),
    "json as an object": (
        {"structured_outputs": {"json": {"type": "integer", "minimum": 3, "maximum": 9}}},
        "[3-9]",
    ),
    "json as text": ({"structured_outputs": {"json": '{"enum": [7]}'}}, "7"),
    "structural tag": (
        {
            "structured_outputs": {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<n>",
                        "content": {"type": "json_schema", "json_schema": {"enum": [12]}},
                        "end": "</n>",
                    },
                }
            }
        },
        "<n>12</n>",
    ),
    "guided_regex": ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
    "guided_choice": ({"guided_choice": ["up", "down"]}, "up|down"),
    "guided_json": ({"guided_json": {"const": "x"}}, '"x"'),
    "guided_grammar": ({"guided_grammar": 'start: "ok"'}, "ok"),
}


@pytest.mark.parametrize("name", FORMS)
async def test_each_form_is_followed_in_chats_and_completions(
    client: AsyncOpenAI, name: str
) -> None:
    extra_body, pattern = FORMS[name]
    choice = await say(client, extra_body=extra_body, temperature=1.5)
    assert choice.finish_reason == "stop"
    assert re.fullmatch(pattern, choice.message.content)
    completion = await client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=100, extra_body=extra_body
    )
    assert re.fullmatch(pattern, completion.choices[0].text)


async def test_strict_means_enforced(client: AsyncOpenAI) -> None:
    """Whatever can be enforced is, beyond OpenAI's subset; and nothing else is accepted."""
    for schema in (
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
        {"type": "string", "pattern": "^[ab]{4}$"},
    ):
        choice = await say(client, response_format=json_schema(schema, strict=True))
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), schema)
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        await say(client, response_format=json_schema(UNIQUE, strict=True))
    assert caught.value.param == "response_format"


async def test_without_strict_the_answer_says_what_was_not_enforced(client: AsyncOpenAI) -> None:
    for strict in (None, False):
        choice = await say(client, response_format=json_schema(UNIQUE, strict=strict))
        document = json.loads(choice.message.content)
        report = choice.structured_outputs
        assert report["unenforced"] == [
            {"keyword": "uniqueItems", "path": "$.properties.tags.uniqueItems"}
        ]
        assert not jsonschema.Draft202012Validator(UNIQUE).is_valid(document)  # three of two
        assert report["valid"] is False
        assert report["violations"][0]["path"] == "$.tags"


async def test_a_stream_says_it_with_its_finish_reason(client: AsyncOpenAI) -> None:
    tags = {"type": "array", "items": ONE_OR_TWO, "maxItems": 2, "uniqueItems": True}
    schema = {**UNIQUE, "properties": {"tags": tags}}
    verdicts = set()
    for seed in range(8):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            response_format=json_schema(schema),
            stream=True,
            temperature=2,
            seed=seed,
        )
        chunks = [chunk async for chunk in stream]
        document = json.loads("".join(c.choices[0].delta.content or "" for c in chunks))
        last: Any = chunks[-1].choices[0]
        valid = jsonschema.Draft202012Validator(schema).is_valid(document)
        assert last.structured_outputs["valid"] is valid
        assert not any(hasattr(c.choices[0], "structured_outputs") for c in chunks[:-1])
        verdicts.add(valid)
    assert True in verdicts


async def test_what_is_enforced_is_not_reported(client: AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3}},
        "required": ["n"],
        "additionalProperties": False,
    }
    choice = await say(client, response_format=json_schema(schema))
    assert json.loads(choice.message.content)["n"] >= 3
    assert not hasattr(choice, "structured_outputs")


async def test_documents_can_be_without_blanks(client: AsyncOpenAI) -> None:
    value = {"a": [1, 2, {"b c": None}]}
    wanted = {"json": {"const": value}, "disable_any_whitespace": True}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for fields in ({}, {"tools": [tool], "tool_choice": "none"}):
        choice = await say(client, extra_body={"structured_outputs": wanted}, **fields)
        assert choice.message.content == '{"a":[1,2,{"b c":null}]}'


async def test_either_a_call_or_a_document(client: AsyncOpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    choice = await say(
        client, tools=[tool], response_format=json_schema(schema, strict=True), temperature=2
    )
    if choice.finish_reason == "stop":
        jsonschema.validate(json.loads(choice.message.content), schema)
    else:
        assert choice.finish_reason in ("tool_calls", "length")
