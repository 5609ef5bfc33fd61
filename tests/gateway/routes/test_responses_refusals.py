"""What a request for a response is refused for, and who may not see one."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import BadRequestError, NotFoundError

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import get
from tests.gateway.routes.test_responses import TOOL, create
from tests.gateway.routes.test_streams import stranger
from tests.gateway.serving import MODEL, Gateway

pytestmark = pytest.mark.asyncio


async def test_refusals_of_the_engine_are_statuses(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(error="too odd", error_code="invalid_request")
    for fields in ({}, {"stream": True}, {"background": True}):
        answer = await create(gateway, input="hi", **fields)
        assert (answer.status, answer.error["message"]) == (400, "too odd")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
         "input[0].content[0]"),
        ({"input": [3]}, "input[0]"),
        ({"input": "x", "tools": [3]}, "tools[0]"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "truncation": "some"}, "truncation"),
        ({"input": "x" * 3000, "truncation": "auto"}, "input"),
        ({"input": "x", "max_tool_calls": 0}, "max_tool_calls"),
        ({"input": "x", "include": ["message.output_text.secrets"]}, "include[0]"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "x", "reasoning": {"effort": "very"}}, "reasoning.effort"),
        ({"input": "x", "text": {"format": {"type": "json_object", "schema": {}}}},
         "text.format.schema"),
        ({"input": "x", "response_format": {"type": "text"}}, "response_format"),
        ({"input": "x", "service_tier": "golden"}, "service_tier"),
        ({"input": "x", "frequency_penalty": 3}, "frequency_penalty"),
        ({"input": "x", "chat_template_kwargs": {"odd": 1}}, "chat_template_kwargs.odd"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}},
         "tool_choice.function.name"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": "x" * 3000}, "input"),
        ({"input": "x", "temperature": -1}, "temperature"),
        ({"input": "x", "metadata": {"a": "b" * 600}}, "metadata.a"),
        ({"input": "x", "store": False, "background": True}, "store"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
         "text.format.name"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a",
          "schema": {"type": "nothing"}}}}, "text.format"),
        ({"input": "x", "previous_response_id": "resp_\0"}, "previous_response_id"),
        ({"input": "x", "messages": []}, "messages"),
    ],
)  # fmt: skip
async def test_wrong_fields_are_named(
    gateway: Gateway, double: EngineDouble, fields: dict[str, Any], param: str
) -> None:
    answer = await create(gateway, **fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert double.requests == []


async def test_hints_are_taken_and_listed_as_ignored(gateway: Gateway) -> None:
    answer = await create(
        gateway,
        input="x",
        reasoning={"effort": "high", "summary": "concise"},
        text={"verbosity": "high"},
        user="a",
        safety_identifier="b",
        service_tier="scale",
        prompt_cache_retention="24h",
    )
    assert answer.status == 200, answer.body
    assert set(answer.headers["x-sluice-ignored"].split(", ")) == {
        "prompt_cache_retention",
        "reasoning.effort",
        "reasoning.summary",
        "service_tier",
        "text.verbosity",
        "user",
    }
    assert answer.json()["service_tier"] == "default"


async def test_ids_are_nothing_to_another_tenant(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        mine = await client.responses.create(model=MODEL, input="secret", background=True)
    key = await stranger(gateway)
    async with gateway.openai(api_key=key) as theirs:
        for call in (
            theirs.responses.retrieve(mine.id),
            theirs.responses.retrieve(mine.id, stream=True),
            theirs.responses.cancel(mine.id),
            theirs.responses.delete(mine.id),
            theirs.responses.input_items.list(mine.id),
        ):
            with pytest.raises(NotFoundError):
                await call
        with pytest.raises(BadRequestError) as caught:
            await theirs.responses.create(model=MODEL, input="x", previous_response_id=mine.id)
        assert caught.value.code == "previous_response_not_found"
        reference: Any = [{"type": "item_reference", "id": mine.id.replace("resp", "msg") + "_0"}]
        with pytest.raises(BadRequestError):
            await theirs.responses.create(model=MODEL, input=reference)


async def test_an_id_of_any_length_is_shown_in_part(gateway: Gateway) -> None:
    key = f"Bearer {gateway.api_key}"
    answer = await get(gateway, f"/v1/responses/{'x' * 4000}", authorization=key)
    assert answer.status == 404
    assert len(answer.error["message"]) < 200


async def test_scopes(gateway: Gateway) -> None:
    only = await gateway.key("responses")
    async with gateway.openai(api_key=only) as client:
        response = await client.responses.create(model=MODEL, input="hi")
        await client.responses.retrieve(response.id)
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}]
            )
    async with gateway.openai(api_key=await gateway.key("usage")) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.retrieve(response.id)


async def test_queries_are_checked(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi")
    for query, status, param in (
        ("stream=yes", 400, "stream"),
        ("starting_after=1", 400, "starting_after"),
        ("stream=true&starting_after=-1", 400, "starting_after"),
        ("include=x", 400, "include"),
        ("include_obfuscation=true", 400, "include_obfuscation"),
        ("stream=true", 410, None),  # neither in the background nor resumable
    ):
        answer = await get(
            gateway,
            f"/v1/responses/{response.id}?{query}",
            authorization=f"Bearer {gateway.api_key}",
        )
        assert (answer.status, answer.error["param"]) == (status, param)
