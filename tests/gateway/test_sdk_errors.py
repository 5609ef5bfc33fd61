"""What the ``openai`` package makes of failures: what it raises, and whether it tries again."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import Gateway, chat_body, until

pytestmark = pytest.mark.asyncio

BUSY = Play(error="busy", error_code="queue_full")
BROKEN = Play(error="broken", error_code="internal")


async def say(client: AsyncOpenAI, **fields: Any) -> Any:
    return await client.chat.completions.create(**chat_body(**fields))


async def test_a_full_queue_is_tried_again(gateway: Gateway, double: EngineDouble) -> None:
    plays = [BUSY, Play(text="Hi")]
    double.script = lambda prompt: plays.pop(0)
    async with gateway.openai(max_retries=1) as client:
        answer = await say(client)
    assert answer.choices[0].message.content == "Hi"
    assert len(double.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_generation_is_not(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: BROKEN
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await say(client, stream=stream)
    assert caught.value.code == "generation_failed"
    assert len(double.requests) == 1


async def test_a_failure_after_the_first_token_raises_in_the_stream(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="Hi", error="broken", error_code="internal")
    async with gateway.openai(max_retries=2) as client:
        chunks = aiter(await say(client, stream=True))
        said = ""
        while not said:
            said += (await anext(chunks)).choices[0].delta.content or ""
        with pytest.raises(openai.APIError, match="broken"):
            _ = [chunk async for chunk in chunks]
    assert len(double.requests) == 1


async def test_an_engine_that_comes_back_is_found_again(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="Hi")
    double.crash()
    async with gateway.openai(max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await say(client)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"]
        await until(lambda: len(double.lives) > 1)
    async with gateway.openai(max_retries=2) as client:
        assert (await say(client)).choices[0].message.content == "Hi"


async def test_classes_by_status(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        with pytest.raises(openai.BadRequestError):
            await say(client, n=0)
        with pytest.raises(openai.NotFoundError):
            await say(client, model="other")
    async with gateway.openai(api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await say(client)
    async with gateway.openai(api_key=await gateway.key("usage")) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await say(client)
