from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.text.tokenizer import Tokenizer
from gateway.routes import tokenize
from tests.gateway.engine_double import EngineDouble
from tests.gateway.serving import MODEL, Gateway, chat_body, double_client, make_config, served

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def post(client: AsyncOpenAI, path: str, **body: Any) -> Any:
    return await client.post(path, body={"model": MODEL, **body}, cast_to=object)


async def test_there_and_back(client: AsyncOpenAI, double: EngineDouble) -> None:
    found = await post(client, "/tokenize", prompt="né<|im_end|>", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == 4
    assert found["max_model_len"] == double.max_model_len
    assert found["token_strs"] == ["n", "\ufffd", "\ufffd", "<|im_end|>"]
    back = await post(client, "/detokenize", tokens=found["tokens"])
    assert back == {"prompt": "né<|im_end|>"}


async def test_messages_count_as_a_chat_counts_them(
    client: AsyncOpenAI, gateway: Gateway, double: EngineDouble
) -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    function = {"name": "f", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}]
    body = chat_body("hello", tools=tools)
    found = await post(client, "/tokenize", messages=body["messages"], tools=tools)
    await client.chat.completions.create(**body)
    assert found["tokens"] == double.requests[0].prompt_token_ids
    assert found["token_strs"] is None
    shorter = await post(
        client, "/tokenize", messages=body["messages"], add_generation_prompt=False
    )
    assert shorter["count"] < found["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": [], "add_special_tokens": True}, "add_special_tokens"),
        (
            "/tokenize",
            {"messages": [], "tools": [{"type": "custom", "custom": {"name": "f"}}]},
            "tools[0].type",
        ),
        ("/detokenize", {"tokens": [0, 10**9]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_what_is_wrong_is_named(
    client: AsyncOpenAI, path: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await post(client, path, **body)
    assert caught.value.param == param


async def test_a_prompt_has_a_length(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="send it in parts") as caught:
        await post(client, "/tokenize", prompt="a" * (tokenize.MAX_CHARS + 1))
    assert (caught.value.status_code, caught.value.param) == (413, "prompt")


async def test_another_model_and_another_scope(gateway: Gateway, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await post(client, "/tokenize", model="other", prompt="a")
    async with gateway.openai(api_key=await gateway.key("usage")) as stranger:
        with pytest.raises(openai.PermissionDeniedError):
            await post(stranger, "/tokenize", prompt="a")


async def test_where_the_model_knows_no_tools_none_are_shown_to_it(model_dir: Path) -> None:
    config = make_config(model_dir, models={"tool_parser": "none"})
    double = EngineDouble(Tokenizer.load(model_dir))
    body = chat_body("hello", tools=[{"type": "function", "function": {"name": "f"}}])
    async with (
        served(config, double_client(config, double)) as gateway,
        gateway.openai() as client,
    ):
        for path in ("/chat/completions", "/tokenize"):
            with pytest.raises(openai.BadRequestError, match="knows no tools") as caught:
                await client.post(path, body=body, cast_to=object)
            assert caught.value.param == "tools"
        unasked = await client.chat.completions.create(**body, tool_choice="none")
        assert unasked.choices[0].finish_reason == "stop"
