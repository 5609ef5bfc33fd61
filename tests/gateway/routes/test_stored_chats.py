"""Stored chat completions as OpenAI's own package uses them, on the engine double."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.serving import MODEL, Gateway, served_double

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def place(model_dir: Path) -> AsyncIterator[tuple[Gateway, AsyncOpenAI]]:
    async with served_double(model_dir) as (gateway, _), gateway.openai() as client:
        yield gateway, client


async def ask(client: AsyncOpenAI, text: str, **fields: Any) -> Any:
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], store=True, **fields
    )


async def test_a_chat_is_found_changed_and_deleted(place: tuple[Gateway, AsyncOpenAI]) -> None:
    _, client = place
    made = await ask(client, "one", metadata={"a": "b"})
    chats = client.chat.completions
    assert await chats.retrieve(made.id) == made
    page = await chats.messages.list(made.id)
    assert [(one.role, one.content) for one in page.data] == [("user", "one")]
    changed = await chats.update(made.id, metadata={"c": "d"})
    assert (changed.metadata, changed.choices) == ({"c": "d"}, made.choices)
    assert (await chats.retrieve(made.id)).metadata == {"c": "d"}
    assert (await chats.delete(made.id)).deleted
    for call in (chats.retrieve, chats.delete, chats.messages.list):
        with pytest.raises(openai.NotFoundError, match=made.id):
            await call(made.id)


async def test_streams_are_stored_as_they_were_sent(place: tuple[Gateway, AsyncOpenAI]) -> None:
    _, client = place
    text, name = "", ""
    options = {"include_usage": True}
    chunks = [
        chunk async for chunk in await ask(client, "a\nb", stream=True, stream_options=options)
    ]
    for chunk in chunks:
        name = chunk.id
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    stored = await client.chat.completions.retrieve(name)
    assert stored.choices[0].message.content == text
    assert stored.choices[0].finish_reason == "stop"
    assert stored.usage == chunks[-1].usage


async def test_chats_are_listed_in_pages(place: tuple[Gateway, AsyncOpenAI]) -> None:
    gateway, client = place
    made = [await ask(client, str(n), metadata={"odd": str(n % 2)}) for n in range(5)]
    await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    chats = client.chat.completions
    assert [one.id async for one in chats.list(limit=2)] == [one.id for one in made]
    assert [one.id async for one in chats.list(metadata={"odd": "1"})] == [made[1].id, made[3].id]
    assert (await chats.list(order="desc", limit=1)).data[0].id == made[4].id
    assert [one async for one in chats.list(model="other")] == []
    with pytest.raises(openai.BadRequestError, match="nothing with this id"):
        await chats.list(after="chatcmpl-x")
    tenant = await gateway.store.create_tenant("other")
    stranger = await Gateway.key(
        Gateway(
            gateway.url, "", tenant, gateway.store, gateway.app, gateway.server, gateway.engine
        ),
        "chat",
    )
    async with gateway.openai(api_key=stranger) as other:
        assert [one async for one in other.chat.completions.list()] == []
        with pytest.raises(openai.NotFoundError):
            await other.chat.completions.retrieve(made[0].id)


async def test_messages_are_listed_in_pages(place: tuple[Gateway, AsyncOpenAI]) -> None:
    _, client = place
    parts = [{"type": "text", "text": "Hi"}]
    asked: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    made: Any = await client.chat.completions.create(
        model=MODEL,
        store=True,
        messages=asked,
    )
    messages = client.chat.completions.messages
    page = [one async for one in messages.list(made.id, limit=1)]
    assert [one.role for one in page] == ["system", "user"]
    assert page[1].content_parts is not None
    last = (await messages.list(made.id, order="desc")).data[0]
    assert last.id == page[1].id
    with pytest.raises(openai.BadRequestError, match="nothing with this id"):
        await messages.list(made.id, after="x")
