"""Pictures by each API, through the ``openai`` and ``anthropic`` packages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.text.tokenizer import Tokenizer
from tenants.limits import Limits
from tests.gateway.engine_double import EngineDouble
from tests.gateway.images.drawing import data_url, image_part, picture, question
from tests.gateway.serving import MODEL, Gateway, double_client, make_config, served
from tests.gateway.ws_client import ready, text_of
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio
SMALL = data_url(picture())
IMAGE: Any = {"type": "input_image", "image_url": SMALL}


@pytest_asyncio.fixture
async def pair(model_dir: Path) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    config, double = make_config(model_dir), EngineDouble(Tokenizer.load(model_dir))
    tenants = msgspec.structs.replace(config.tenants, max_conversation_bytes=20_000)
    config = msgspec.structs.replace(config, tenants=tenants)
    async with served(config, double_client(config, double), store=MemoryStore()) as gateway:
        gateway.api_key = await gateway.key("chat", "responses")
        yield gateway, double


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


@pytest_asyncio.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=gateway.api_key, max_retries=0
    ) as client:
        yield client


def said(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


async def test_models_say_what_they_take(client: AsyncOpenAI) -> None:
    (model,) = (await client.models.list()).data
    assert model.model_dump()["input_modalities"] == ["text", "image"]


async def test_messages(claude: anthropic.AsyncAnthropic, double: EngineDouble) -> None:
    data = base64.b64encode(picture()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    block: Any = {"type": "image", "source": source}
    messages = said({"type": "text", "text": "what"}, block, {"type": "text", "text": "is it"})
    counted = await claude.messages.count_tokens(model=MODEL, messages=messages)
    answer = await claude.messages.create(model=MODEL, messages=messages, max_tokens=9)
    (sent,) = double.requests
    assert len(sent.images) == 1
    assert answer.usage.input_tokens == counted.input_tokens == len(sent.prompt_token_ids)

    tool: Any = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    called = [*said({"type": "text", "text": "x"}), {"role": "assistant", "content": [tool]}]
    await claude.messages.create(model=MODEL, messages=[*called, *said(result)], max_tokens=9)
    assert len(double.requests[-1].images) == 1

    broken: Any = {"type": "image", "source": source | {"data": data[:40]}}
    fetched: Any = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
    for wrong, param in ((broken, "source.data"), (fetched, "source.url")):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await claude.messages.create(
                model=MODEL, messages=[*messages, *said(wrong)], max_tokens=9
            )
        assert f"messages[1].content[0].{param}" in str(caught.value)


async def test_responses(client: AsyncOpenAI, double: EngineDouble, gateway: Gateway) -> None:
    asked = said({"type": "input_text", "text": "what"}, IMAGE | {"detail": "low"})
    counted = await client.responses.input_tokens.count(model=MODEL, input=asked)
    first = await client.responses.create(model=MODEL, input=asked)
    assert first.usage is not None
    (sent,) = double.requests
    num_tokens = sent.images[0].num_tokens
    assert first.usage.input_tokens == counted.input_tokens == len(sent.prompt_token_ids)
    details = first.usage.input_tokens_details.model_dump()
    assert details["image_tokens"] == num_tokens
    # What is continued is shown again, and the input is kept as it came.
    await client.responses.create(model=MODEL, input="and?", previous_response_id=first.id)
    assert double.requests[-1].images[0].digest == sent.images[0].digest
    items: Any = (await client.responses.input_items.list(first.id)).data
    assert items[0].content[1].image_url == SMALL
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await client.responses.create(model=MODEL, input="and?", previous_response_id=first.id)
    # A tool's result may be a picture.
    call: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}
    await client.responses.create(model=MODEL, input=[call, output])
    assert len(double.requests[-1].images) == 1
    for wrong, param in (
        (IMAGE | {"image_url": "data:image/png;base64,AAAA"}, "image_url"),
        ({"type": "input_image", "file_id": "file-none"}, "file_id"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL, input=[*said(IMAGE), *said(wrong)])
        assert caught.value.param == f"input[1].content[0].{param}"
    with pytest.raises(openai.BadRequestError, match="either") as caught:
        await client.responses.create(model=MODEL, input=said(IMAGE | {"file_id": "x"}))
    assert caught.value.param == "input[0].content[0]"


async def test_files_are_those_of_the_tenant(
    client: AsyncOpenAI, double: EngineDouble, gateway: Gateway
) -> None:
    file = await client.files.create(file=("a.png", picture()), purpose="vision")
    asked = said({"type": "input_image", "file_id": file.id})
    first = await client.responses.create(model=MODEL, input=asked)
    assert len(double.requests[-1].images) == 1
    other = await gateway.store.create_tenant("globex")
    async with gateway.openai(api_key=await _key_of(gateway, other)) as stranger:
        with pytest.raises(openai.BadRequestError, match="no file") as caught:
            await stranger.responses.create(model=MODEL, input=asked)
        assert caught.value.code == "image_file_not_found"
    await client.files.delete(file.id)
    wrong: Any
    for wrong, param in (
        ({"input": asked}, "input[0].content[0].file_id"),
        ({"input": "x", "previous_response_id": first.id}, "previous_response_id"),
    ):
        with pytest.raises(openai.BadRequestError, match="no file") as caught:
            await client.responses.create(model=MODEL, **wrong)
        assert caught.value.param == param


async def _key_of(gateway: Gateway, tenant: Any) -> str:
    before, gateway.tenant = gateway.tenant, tenant
    try:
        return await gateway.key("chat", "responses")
    finally:
        gateway.tenant = before


async def test_conversations_keep_pictures(client: AsyncOpenAI, double: EngineDouble) -> None:
    made = await client.conversations.create()
    await client.responses.create(model=MODEL, input=said(IMAGE), conversation=made.id)
    await client.responses.create(model=MODEL, input="and?", conversation=made.id)
    assert len(double.requests[-1].images) == 1
    large: Any = IMAGE | {"image_url": data_url(picture(400, 400, "BMP"))}
    with pytest.raises(openai.BadRequestError, match="no room"):
        await client.conversations.create(items=said(large))


async def test_over_the_websocket(gateway: Gateway, double: EngineDouble) -> None:
    async with ready(gateway) as socket:
        messages = question("what", image_part(SMALL))
        await socket.send(type="chat", id="t", messages=messages)
        frames = await socket.turn("t")
        assert text_of(frames)
        details = frames[-1]["usage"]["prompt_tokens_details"]
        assert details["image_tokens"] == double.requests[-1].images[0].num_tokens


async def test_budgets_count_pictures_before_they_are_decoded(
    client: AsyncOpenAI, gateway: Gateway, double: EngineDouble
) -> None:
    tenant = gateway.tenant.id
    damaged = picture(64, 64)[:150]  # whole in its header
    messages: Any = question(image_part(data_url(damaged)))
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert caught.value.code == "image_parse_error"
    many: Any = question(*[image_part(SMALL)] * 16)
    with pytest.raises(openai.BadRequestError, match="maximum context"):
        await client.chat.completions.create(
            model=MODEL, messages=many, max_tokens=double.max_model_len - 10
        )
    assert not double.requests
    await gateway.store.put_limits(tenant, "tenant", tenant, Limits(monthly_tokens=30))
    async with gateway.openai(api_key=await gateway.key("chat")) as poor:
        with pytest.raises(openai.RateLimitError):
            await poor.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
