from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.serving import MODEL, Gateway

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def check(client: AsyncOpenAI, schema: Any, model: str = MODEL) -> Any:
    body = {"model": model, "schema": schema}
    return await client.post("/schemas/check", body=body, cast_to=object)


async def test_a_schema_that_is_enforced(client: AsyncOpenAI) -> None:
    found = await check(client, {"type": "string", "not": {"pattern": "^a"}})
    assert (found["strict"], found["error"], found["unenforced"]) == (True, None, [])
    assert found["backend"] == "llguidance"
    assert found["bytes"] == 40
    assert found["compiled_chars"] > 39


async def test_what_cannot_be_enforced_is_named_with_its_place(client: AsyncOpenAI) -> None:
    found = await check(client, {"properties": {"a/b c": {"type": "array", "uniqueItems": True}}})
    assert not found["strict"]
    assert found["error"] is None
    (keyword,) = found["unenforced"]
    assert keyword["keyword"] == "uniqueItems"
    assert keyword["pointer"] == "/properties/a~1b c/uniqueItems"
    assert keyword["reason"]


@pytest.mark.parametrize(
    ("schema", "pointer", "message"),
    [
        ({"items": {"type": "text"}}, "/items/type", "one or several of"),
        ({"items": {"$ref": "#/$defs/a"}}, "/items/$ref", "leads nowhere"),
        (
            {
                "properties": {"a": {"enum": []}},
                "required": ["a"],
                "type": "object",
            },
            "/properties/a",
            "nothing can satisfy",
        ),
        (False, "", "accepts nothing"),
        ({"description": "x" * 300_000}, "", "over the limit"),
    ],
)
async def test_what_cannot_be_used_at_all(
    client: AsyncOpenAI, schema: Any, pointer: str, message: str
) -> None:
    found = await check(client, schema)
    assert not found["strict"]
    assert found["error"]["pointer"].startswith(pointer)
    assert message in found["error"]["message"]


async def test_a_model_that_the_key_may_not_use(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await check(client, {}, model="other")


async def test_what_is_no_schema(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await check(client, ["a"])
    assert caught.value.param == "schema"
