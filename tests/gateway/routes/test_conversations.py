"""``/v1/conversations`` through the ``openai`` package, and responses that go on with them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.text.tokenizer import Tokenizer
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway, double_client, make_config, served

pytestmark = pytest.mark.asyncio

HI: Any = {"type": "message", "role": "user", "content": "hi"}
CALL: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
NONE: Any = {"type": "x"}
OUTPUT: Any = {"type": "function_call_output", "call_id": "c", "output": "7"}


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def texts(client: AsyncOpenAI, conversation_id: str) -> list[str]:
    """What was said, in order."""
    items: Any = [
        item
        async for item in client.conversations.items.list(conversation_id, order="asc", limit=2)
    ]
    return [item.content[0].text if item.type == "message" else item.type for item in items]


async def test_items_come_and_go(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HI], metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    added = await client.conversations.items.create(made.id, items=[CALL, OUTPUT, HI, HI])
    assert [item.type for item in added.data] == [
        "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert await texts(client, made.id) == [
        "hi", "function_call", "function_call_output", "hi", "hi",
    ]  # fmt: skip
    first: Any = added.data[0]
    found: Any = await client.conversations.items.retrieve(first.id, conversation_id=made.id)
    assert found == first
    assert found.model_dump(exclude_unset=True)["status"] == "completed"
    assert "namespace" not in found.model_dump(exclude_unset=True)
    left = await client.conversations.items.delete(first.id, conversation_id=made.id)
    assert left.id == made.id
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(first.id, conversation_id=made.id)
    newest = await client.conversations.items.list(made.id, limit=1)
    assert newest.has_more
    assert newest.last_id == added.data[-1].id


async def test_a_deleted_conversation_is_gone(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HI])
    changed = await client.conversations.update(made.id, metadata={"x": "y"})
    assert (await client.conversations.retrieve(made.id)) == changed
    assert (await client.conversations.delete(made.id)).deleted
    for call in (
        client.conversations.retrieve(made.id),
        client.conversations.update(made.id, metadata={}),
        client.conversations.delete(made.id),
        client.conversations.items.create(made.id, items=[HI]),
        client.responses.create(model=MODEL, input="x", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await call
        assert caught.value.code == "conversation_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.list(made.id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_responses_go_on_with_it(
    client: AsyncOpenAI, double: EngineDouble, stream: bool, store: bool
) -> None:
    double.script = lambda prompt: Play(text=f"{prompt.count('user')}")
    made = await client.conversations.create(items=[HI])
    both: list[Any] = [made.id, {"id": made.id}]
    for number, conversation in enumerate(both, 1):
        answer: Any = await client.responses.create(
            model=MODEL, input=f"ask {number}", conversation=conversation, store=store,
            stream=stream,
        )  # fmt: skip
        if stream:
            events = [event async for event in answer]
            assert events[-1].type == "response.completed"
            answer = events[-1].response
        assert answer.conversation.id == made.id
        assert answer.output_text == str(number + 1)
    assert await texts(client, made.id) == ["hi", "ask 1", "2", "ask 2", "3"]
    count = await client.responses.input_tokens.count(model=MODEL, input="x", conversation=made.id)
    assert count.input_tokens > 40


async def test_what_failed_is_not_in_it(client: AsyncOpenAI, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="ab", error="broken", error_code="internal")
    made = await client.conversations.create(items=[HI])
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model=MODEL, input="ask", conversation=made.id)
    assert await texts(client, made.id) == ["hi"]


async def test_one_that_is_deleted_meanwhile(client: AsyncOpenAI, double: EngineDouble) -> None:
    made = await client.conversations.create()
    double.script = lambda prompt: Play(text="abc", interval_s=0.05)
    stream = await client.responses.create(
        model=MODEL, input="x", conversation=made.id, stream=True
    )
    last: Any = None
    async for event in stream:
        if event.type == "response.in_progress":
            await client.conversations.delete(made.id)
        last = event
    assert last.type == "response.completed"
    assert last.response.conversation is None
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_what_is_wrong_is_named(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    bad: list[tuple[Any, str]] = [
        (client.conversations.items.create(made.id, items=[HI] * 21), "items"),
        (client.conversations.items.create(made.id, items=[NONE]), "items[0].type"),
        (client.conversations.create(items=[HI], metadata={"a": "b" * 600}), "metadata.a"),
        (client.conversations.items.list(made.id, after="nothing"), "after"),
        (client.conversations.items.list(made.id, limit=0), "limit"),
        (
            client.responses.create(
                model=MODEL, input="x", conversation=made.id, previous_response_id="resp_x"
            ),
            "conversation",
        ),
        (
            client.responses.create(model=MODEL, input=[OUTPUT], conversation=made.id),
            "input[0].call_id",
        ),
        (client.responses.create(model=MODEL, input=[], conversation=made.id), "input"),
    ]
    for call, param in bad:
        with pytest.raises(openai.BadRequestError) as caught:
            await call
        assert caught.value.param == param


async def test_the_conversations_of_a_key_are_listed(gateway: Gateway, client: AsyncOpenAI) -> None:
    first = await client.conversations.create(items=[HI], metadata={"title": "One"})
    second = await client.conversations.create(metadata={"title": "Two"})
    await client.conversations.items.create(first.id, items=[HI])

    async def listed(client: AsyncOpenAI = client, **query: Any) -> Any:
        return await client.get("/conversations", cast_to=httpx.Response, options={"params": query})

    found = (await listed()).json()
    assert [one["id"] for one in found["data"]] == [first.id, second.id]
    assert found["data"][0]["metadata"] == {"title": "One"}
    page = (await listed(limit=1)).json()
    assert (page["has_more"], page["last_id"]) == (True, first.id)
    assert (await listed(after=first.id)).json()["first_id"] == second.id
    assert [one["id"] for one in (await listed(search="tw")).json()["data"]] == [second.id]
    with pytest.raises(openai.BadRequestError):
        await listed(after="conv_none")
    with pytest.raises(openai.BadRequestError):
        await listed(search="x" * 201)
    other = client.with_options(api_key=await gateway.key("chat"))
    assert (await listed(other)).json()["data"] == []


async def test_a_response_goes_on_with_the_line_of_the_last_message(
    client: AsyncOpenAI, double: EngineDouble
) -> None:
    """An answer beside one that was asked for later is not in the prompt."""

    async def say(role: str, text: str, **fields: Any) -> str:
        item: Any = {"type": "message", "role": role, "content": text, **fields}
        return (await client.conversations.items.create(made.id, items=[item])).data[0].id or ""

    made = await client.conversations.create()
    question = await say("user", "one")
    await say("assistant", "bad", client_data={"usage": {"total_tokens": 7}})
    await say("assistant", "good", parent_id=question)
    await say("user", "two")
    listed: Any = await client.conversations.items.list(made.id, order="asc")
    assert listed.data[1].client_data == {"usage": {"total_tokens": 7}}
    assert listed.data[2].parent_id == question
    await client.responses.create(model=MODEL, conversation=made.id, input="three")
    prompts = [double.prompt()]
    await say("user", "anew", parent_id="")
    await client.responses.create(model=MODEL, conversation=made.id, input="four")
    prompts.append(double.prompt())
    assert [re.findall(r"one|bad|good|two|three|anew|four", prompt) for prompt in prompts] == [
        ["one", "good", "two", "three"],
        ["anew", "four"],
    ]


async def test_a_tenant_whose_conversations_are_forbidden_keeps_none(model_dir: Path) -> None:
    """By the server's settings, unless its own say otherwise."""
    config = make_config(model_dir)
    tenants = msgspec.structs.replace(config.tenants, conversation_days=0)
    config = msgspec.structs.replace(config, tenants=tenants)
    double = EngineDouble(Tokenizer.load(model_dir))
    async with served(config, double_client(config, double)) as gateway, gateway.openai() as client:
        with pytest.raises(openai.PermissionDeniedError, match="conversation_days"):
            await client.conversations.create()
        key = (await gateway.store.list_keys(gateway.tenant.id))[0]
        await gateway.store.conversations.create(
            gateway.tenant.id, "conv_old", b"{}", max_bytes=10**6, key_id=key.id
        )
        with pytest.raises(openai.PermissionDeniedError):
            await client.conversations.items.create("conv_old", items=[HI])
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model=MODEL, conversation="conv_old", input="hi")
        origin = gateway.url.removeprefix("http://")
        async with httpx.AsyncClient(base_url=gateway.url) as page:
            headers = {"origin": f"http://{origin}", "x-sluice-csrf": "1"}
            state = await page.post(
                "/auth/session", json={"api_key": gateway.api_key}, headers=headers
            )
        assert state.json()["keeps_conversations"] is False
        assert (await client.conversations.delete("conv_old")).deleted
        await gateway.store.update_tenant(gateway.tenant.id, conversation_days=30)
        gateway.authenticator.forget()
        assert (await client.conversations.create()).id
