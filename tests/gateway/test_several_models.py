"""One gateway with several models, each with its own engines, template and price."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from gateway.config import Config
from tests.gateway.engine_double import EngineDouble, says
from tests.gateway.serving import Gateway, chat_body, served, until

pytestmark = pytest.mark.asyncio


def two_models(model_dir: Path, **server: Any) -> Config:
    return configuration.parse(
        {
            "engine": {"model": str(model_dir)},
            "server": {"port": 0, "flush_interval_ms": 0} | server,
            "models": [
                {"served_model_name": "one", "aliases": ["usual"], "default_max_tokens": 7},
                {"served_model_name": "two", "price_completion": 5_000_000},
            ],
        }
    )


@asynccontextmanager
async def gateway_of_two(model_dir: Path) -> AsyncIterator[tuple[Gateway, Fleets]]:
    """The second model's engine has not been started."""
    config = two_models(model_dir)
    fleets = Fleets(
        {
            one.model_name: Fleet(
                [
                    EngineClient(
                        one.engine,
                        transport=EngineDouble(
                            Tokenizer.load(model_dir), script=says(one.model_name)
                        ),
                        name=str(number),
                    )
                ],
                failover_wait_s=0.0,
            )
            for number, one in enumerate(config.each)
        }
    )
    await fleets["one"].start()
    async with served(config, fleets, started=False) as gateway:
        yield gateway, fleets


async def test_each_model_answers_for_itself_and_one_that_loads_is_503(model_dir: Path) -> None:
    async with gateway_of_two(model_dir) as (gateway, fleets):
        headers = {"authorization": f"Bearer {gateway.api_key}"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as http:

            async def listed() -> list[str]:
                return [one["id"] for one in (await http.get("/v1/models")).json()["data"]]

            async def ask(model: str) -> httpx.Response:
                body = chat_body("hi") | {"model": model}
                return await http.post("/v1/chat/completions", json=body)

            assert await listed() == ["one", "usual"]
            for refused in (await ask("two"), await http.get("/v1/models/two")):
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "2"
                assert refused.json()["error"]["code"] == "engine_unavailable"
            assert (await http.get("/v1/models/three")).status_code == 404
            ready = (await http.get("/readyz")).json()
            assert ready["models"] == {"one": "ready", "two": "away"}
            assert ready["engines"] == {"0": "ready", "1": "away"}

            await fleets["two"].start()
            assert await listed() == ["one", "two", "usual"]
            for model, name in (("one", "one"), ("usual", "one"), ("two", "two")):
                answer = (await ask(model)).json()
                assert answer["model"] == name
                assert answer["choices"][0]["message"]["content"] == name
            assert (await gateway.usage(3)).cost_micro == 15  # of the two tokens of "two"


async def test_when_one_models_engine_dies_the_other_serves(model_dir: Path) -> None:
    async with gateway_of_two(model_dir) as (gateway, fleets):
        await fleets["two"].start()
        fleets["one"].engines[0].lose("it was unplugged")
        await until(lambda: not fleets["one"].ready)
        async with gateway.openai() as client:
            answer = await client.chat.completions.create(**chat_body("hi") | {"model": "two"})
        assert answer.choices[0].message.content == "two"
