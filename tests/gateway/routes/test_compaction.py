"""``POST /v1/responses/compact``, and going on from what it returns."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway

pytestmark = pytest.mark.asyncio

INPUT: Any = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "It rains in Oslo."},
    {"role": "assistant", "content": "I see."},
]


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def test_what_follows_goes_on_from_the_summary(
    gateway: Gateway, client: AsyncOpenAI, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="Rain.")
    made: Any = await client.responses.compact(model=MODEL, input=INPUT)
    assert made.object == "response.compaction"
    assert [item.type for item in made.output] == ["message", "compaction"]
    assert "It rains in Oslo." in double.prompt()
    assert "summary" in double.prompt()
    usage = await gateway.usage()
    assert usage.completion_tokens == made.usage.output_tokens == len("Rain.")
    kept = [item.model_dump(exclude_unset=True, warnings=False) for item in made.output]
    for store in (True, False):
        await client.responses.create(
            model=MODEL, input=[*kept, {"role": "user", "content": "So?"}], store=store
        )
        prompt = double.prompt()
        assert "It rains in Oslo." not in prompt
        assert prompt.index("Be brief.") < prompt.index("Rain.") < prompt.index("So?")
    with pytest.raises(openai.NotFoundError):  # it is stored nowhere
        await client.responses.retrieve(made.id)


async def test_an_earlier_response_is_summed_up(client: AsyncOpenAI, double: EngineDouble) -> None:
    first = await client.responses.create(model=MODEL, input="one")
    made: Any = await client.responses.compact(model=MODEL, previous_response_id=first.id)
    for text in ("one", first.output_text):
        assert text in double.prompt()
    (item,) = made.output
    conversation = await client.conversations.create(items=[item.model_dump(exclude_unset=True)])
    await client.responses.create(model=MODEL, input="two", conversation=conversation.id)
    summary = base64.urlsafe_b64decode(item.encrypted_content).decode()
    assert summary in double.prompt()


async def test_what_is_wrong_is_named(client: AsyncOpenAI, double: EngineDouble) -> None:
    strange: Any = [{"type": "compaction", "encrypted_content": "gAAAA-not-ours"}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input=strange)
    assert caught.value.param == "input[0].encrypted_content"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.compact(model=MODEL, extra_body={"conversation": "conv_x"})
    assert caught.value.param == "conversation"
    empty: list[dict[str, Any]] = [{}, {"input": ""}, {"input": []}]
    for nothing in empty:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.compact(model=MODEL, extra_body=nothing)
        assert caught.value.param == "input"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.compact(model=None, input="x")
    assert (caught.value.param, caught.value.code) == ("model", "missing_required_parameter")
    double.script = lambda prompt: Play(text="ab", error="broken", error_code="internal")
    with pytest.raises(openai.InternalServerError) as failed:
        await client.responses.compact(model=MODEL, input="x")
    assert failed.value.response.headers["x-should-retry"] == "false"
