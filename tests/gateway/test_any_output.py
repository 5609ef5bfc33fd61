"""Whatever a model writes, its answer ends as one: no parser and no assembler fails of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.text.tokenizer import Tokenizer
from gateway.parsers.base import ToolFormat
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.parsers.test_formats import FRAGMENTS, SIGNS
from tests.gateway.raw_http import events, exchange, post
from tests.gateway.serving import MODEL, chat_body, double_client, encode, make_config, served

pytestmark = pytest.mark.asyncio

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "parameters": SCHEMA}
JSON = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
CHAT = chat_body(tools=[{"type": "function", "function": FUNCTION}])
RESPONSE = {"model": MODEL, "input": "hi", "tools": [{"type": "function", **FUNCTION}]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT | {"parallel_tool_calls": False}),
    ("/v1/chat/completions", CHAT | {"stream": True, "tool_choice": "required"}),
    ("/v1/chat/completions", CHAT | {"response_format": JSON}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", RESPONSE | {"stream": True}),
]


def output(format: ToolFormat, rng: random.Random) -> str:
    """Parts of calls and of reasoning in any order, behind the beginning of a call or not."""
    begin = rng.choice(["", "</think>", format.opening + format.begin.replace("%s", "f")])
    words = rng.choices([*FRAGMENTS, "<think>", "</think>", "é"], k=rng.randrange(9))
    return begin + "".join(words)


@pytest.mark.parametrize("name", SIGNS)
async def test_whatever_a_model_writes_the_answer_ends(model_dir: Path, name: str) -> None:
    rng, text = random.Random(name), ""
    models = {"tool_parser": name, "reasoning_parser": "think"}
    config = make_config(model_dir, models=models)
    double = EngineDouble(Tokenizer.load(model_dir), script=lambda _: Play(text=text, interval_s=0))
    async with served(config, double_client(config, double)) as gateway:
        for _ in range(12):
            text = output(SIGNS[name][0], rng)
            for path, body in REQUESTS:
                sent = post(gateway, encode(body)).replace(b"/v1/chat/completions", path.encode())
                answer = await exchange(gateway, sent)
                assert answer.status == 200, (text, answer.body)
                if not body.get("stream"):
                    assert "choices" in answer.json() or answer.json()["status"] == "completed"
                elif path == "/v1/responses":
                    assert b"\nevent: response.completed\n" in answer.body, text
                else:
                    assert events(answer.body)[-1] == "[DONE]", text
