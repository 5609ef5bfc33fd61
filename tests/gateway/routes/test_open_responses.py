"""What Open Responses (https://www.openresponses.org, 2026-04-24) demands, clause by clause.

The cases that its suite of acceptance tests has are asked for here, and what comes back is held to
what its schemas require. The suite itself is no package: it runs at night where ``OPEN_RESPONSES``
names a checkout of github.com/openresponses/openresponses (tried with 92c12d96) in which
``npm install bun zod@3`` has run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.images.drawing import data_url, picture, write_model
from tests.gateway.raw_http import exchange, get, post
from tests.gateway.routes.test_responses import CALL, TOOL, create, events_of
from tests.gateway.serving import MODEL, Gateway, double_client, make_config, served, until
from tests.gateway.sockets.test_responses_session import connected

pytestmark = pytest.mark.asyncio

_DELTA = "sequence_number item_id output_index content_index"
_SUMMARY = _DELTA.replace("content", "summary")
REQUIRED = {
    "message": "id status role content",
    "function_call": "id call_id name arguments status",
    "function_call_output": "id call_id output status",
    "reasoning": "id summary",
    "compaction": "id encrypted_content",
    "input_text": "text",
    "input_image": "image_url detail",
    "output_text": "text annotations",
    "function": "name description parameters strict",
    "response.created": "sequence_number response",
    "response.queued": "sequence_number response",
    "response.in_progress": "sequence_number response",
    "response.completed": "sequence_number response",
    "response.incomplete": "sequence_number response",
    "response.failed": "sequence_number response",
    "response.output_item.added": "sequence_number output_index item",
    "response.output_item.done": "sequence_number output_index item",
    "response.content_part.added": f"{_DELTA} part",
    "response.content_part.done": f"{_DELTA} part",
    "response.output_text.delta": f"{_DELTA} delta",
    "response.output_text.done": f"{_DELTA} text",
    "response.function_call_arguments.delta": "sequence_number item_id output_index delta",
    "response.function_call_arguments.done": "sequence_number item_id output_index arguments",
    "error": "error",
    "json_object": "",
    "text": "",
    "reasoning_text": "text",
    "summary_text": "text",
    "response.reasoning_summary_part.added": f"{_SUMMARY} part",
    "response.reasoning_summary_part.done": f"{_SUMMARY} part",
    "response.reasoning_summary_text.delta": f"{_SUMMARY} delta",
    "response.reasoning_summary_text.done": f"{_SUMMARY} text",
}
"""The fields of each type that are required; those of events name the only events there are."""
_SET = (
    "id object created_at status model output tools tool_choice truncation parallel_tool_calls "
    "text top_p presence_penalty frequency_penalty top_logprobs temperature store background "
    "service_tier metadata"
)
_OR_NULL = (
    "completed_at incomplete_details previous_response_id instructions error reasoning usage "
    "max_output_tokens max_tool_calls safety_identifier prompt_cache_key"
)
RESPONSE = f"{_SET} {_OR_NULL}"
NULLABLE = f"{_OR_NULL} effort summary description parameters strict code param user"
"""Of these, ``user`` is OpenAI's."""


def check(value: Any) -> None:
    """Whatever the schemas require is there, and nothing is null that may not be."""
    if isinstance(value, list):
        for part in value:
            check(part)
    if not isinstance(value, dict):
        return
    required = RESPONSE if value.get("object") == "response" else ""
    if isinstance(kind := value.get("type"), str) and kind not in ("object", "string"):
        required = REQUIRED[kind]
    assert not [name for name in required.split() if name not in value], value
    assert not [name for name in value if value[name] is None and name not in NULLABLE.split()], (
        value
    )
    for name, part in value.items():
        if name == "tool_choice" and isinstance(part, dict) and part["type"] == "allowed_tools":
            assert {"tools", "mode"} <= part.keys()
        elif name not in ("tool_choice", "parameters", "error", "structured_outputs"):  # ours
            check(part)


ASKED: dict[str, dict[str, Any]] = {
    "basic": {"input": [{"type": "message", "role": "user", "content": "Say hello."}]},
    "text": {"input": "Say hello."},
    "system": {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate."},
            {"type": "message", "role": "user", "content": "Say hello."},
        ]
    },
    "turns": {
        "input": [
            {"type": "message", "role": "user", "content": "My name is Alice."},
            {"type": "message", "role": "assistant", "content": "Hi!", "phase": "final_answer"},
            {"type": "message", "role": "user", "content": "What is my name?"},
        ]
    },
    "image": {
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is it?"},
                    {"type": "input_image", "image_url": data_url(picture()), "detail": "auto"},
                ],
            }
        ]
    },
    "tools": {"input": "Rain?", "tools": [TOOL]},
    "allowed": {
        "input": "Rain?",
        "tools": [TOOL, {**TOOL, "name": "send_mail"}],
        "tool_choice": {
            "type": "allowed_tools",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
    },
    "result": {
        "input": [
            {"type": "message", "role": "user", "content": "Rain?"},
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "No."},
        ],
        "tools": [TOOL],
    },
    "hints": {
        "input": "x",
        "reasoning": {"effort": "low", "summary": "auto"},
        "service_tier": "flex",
        "include": ["reasoning.encrypted_content"],
        "safety_identifier": "s",
        "prompt_cache_key": "p",
        "metadata": {"a": "b"},
        "text": {"verbosity": "low"},
        "max_output_tokens": 16,
        "max_tool_calls": 1,
        "truncation": "auto",
    },
}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that sees, as one of the suite's cases demands."""
    return write_model(tmp_path_factory.mktemp("seeing"))


@pytest.mark.parametrize("name", ASKED)
async def test_answers_and_streams(gateway: Gateway, double: EngineDouble, name: str) -> None:
    calls = name in ("tools", "allowed")
    double.script = lambda prompt: Play(text=CALL if calls else "Hi!")
    answer = await create(gateway, **ASKED[name])
    assert answer.headers["content-type"] == "application/json"
    response = json.loads(answer.body)
    check(response)
    assert (answer.status, response["status"]) == (200, "completed"), response
    items = await get(
        gateway,
        f"/v1/responses/{response['id']}/input_items",
        authorization=f"Bearer {gateway.api_key}",
    )
    check(json.loads(items.body)["data"])
    kind = "function_call" if calls else "message"
    assert [item["type"] for item in response["output"]] == [kind]
    answer = await create(gateway, **ASKED[name], stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.body)  # which also checks their names, and that the last is [DONE]
    check(events)
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "response.completed"
    assert kinds.index("response.output_item.added") < kinds.index("response.output_item.done")
    assert events[-1]["response"]["output"][0]["type"] == kind
    if calls:
        assert "response.function_call_arguments.delta" in kinds
        assert "response.function_call_arguments.done" in kinds


def _play(play: Play, prompt: str) -> Play:
    return play


@pytest_asyncio.fixture
async def thinking(model_dir: Path) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    """A gateway whose model thinks."""
    config = make_config(model_dir)
    models = msgspec.structs.replace(config.models, reasoning_parser="think")
    double = EngineDouble(Tokenizer.load(model_dir))
    client = double_client(config, double)
    async with served(msgspec.structs.replace(config, models=models), client) as gateway:
        yield gateway, double


@pytest.mark.parametrize("summary", [None, "auto", "detailed", "concise"])
async def test_thoughts(thinking: tuple[Gateway, EngineDouble], summary: str | None) -> None:
    """By the events of summaries, of which all know the names, whatever was asked for."""
    gateway, double = thinking
    double.script = lambda prompt: Play(text="<think>Hm.</think>Hi!")
    answer = await create(gateway, input="x", reasoning={"summary": summary}, stream=True)
    assert ("x-sluice-ignored" in answer.headers) is (summary == "concise")
    events = events_of(answer.body)
    check(events)
    kinds = [event["type"].removeprefix("response.") for event in events]
    first, last = kinds.index("output_item.added"), kinds.index("output_item.done")
    assert list(dict.fromkeys(kinds[first : last + 1])) == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    response = events[-1]["response"]
    assert response["reasoning"] == {"effort": None, "summary": summary}
    thought = response["output"][0]
    assert events[last]["item"] == thought
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]


@pytest.mark.nightly
@pytest.mark.parametrize("thought", ["", "<think>Hm.</think>"])
async def test_its_own_suite(thinking: tuple[Gateway, EngineDouble], thought: str) -> None:
    checkout = os.environ.get("OPEN_RESPONSES")
    if checkout is None:
        pytest.skip("OPEN_RESPONSES names no checkout of Open Responses' repository")
    gateway, double = thinking
    call = CALL.replace("city", "location")
    double.script = lambda prompt: Play(text=thought + (call if "get_weather" in prompt else "Hi!"))
    key = await gateway.key("chat", "responses")
    suite = await asyncio.create_subprocess_exec(
        *("node_modules/.bin/bun", "run", "bin/compliance-test.ts", "--json"),
        *("--base-url", f"{gateway.url}/v1", "--api-key", key, "--model", MODEL),
        cwd=checkout,
        stdout=subprocess.PIPE,
    )
    told, _ = await suite.communicate()
    results = {one["id"]: one for one in json.loads(told)["results"]}
    assert len(results) >= 17
    failed = {name: one["errors"] for name, one in results.items() if one["status"] != "passed"}
    assert not failed


async def test_how_streams_end(gateway: Gateway, double: EngineDouble) -> None:
    """Each with ``[DONE]``, as ``events_of`` checks, after the event of its status."""
    failing = Play(text="ab", error="broken", error_code="internal")
    for script, fields, end in (
        (Play(text="abc"), {}, "completed"),
        (Play(text="x" * 99), {"max_output_tokens": 16}, "incomplete"),
        (failing, {}, "failed"),
    ):
        double.script = partial(_play, script)
        answer = await create(gateway, input="hi", stream=True, **fields)
        last = events_of(answer.body)[-1]
        check(last)
        assert (last["type"], last["response"]["status"]) == (f"response.{end}", end)
        assert all(item["status"] == end for item in last["response"]["output"] if end != "failed")


async def test_a_cancelled_background_stream(gateway: Gateway, double: EngineDouble) -> None:
    """There is no event for it, so that it ends as what remains incomplete, and says why."""
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    async with gateway.openai() as client:
        stream = await client.responses.create(
            model=MODEL, input="hi", background=True, stream=True
        )
        events: list[Any] = [await anext(aiter(stream))]
        await until(lambda: double.running)
        told = await client.responses.cancel(events[0].response.id)
        events += [event async for event in stream]
        kept = await client.responses.retrieve(told.id)
        raw = await client.responses.with_raw_response.retrieve(told.id)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == told.status == kept.status == "cancelled"
    assert events[-1].response.incomplete_details.reason == "cancelled"
    assert kept.incomplete_details == told.incomplete_details
    check(json.loads(raw.content))


@pytest.mark.parametrize("path", ["/v1/responses/resp_0", "/v1/responses/resp_0/input_items"])
async def test_what_is_not_there(gateway: Gateway, path: str) -> None:
    answer = await get(gateway, path, authorization=f"Bearer {gateway.api_key}")
    assert (answer.status, answer.error["type"]) == (404, "not_found")


async def test_only_allowed_tools_can_be_called(gateway: Gateway, double: EngineDouble) -> None:
    await create(gateway, **ASKED["allowed"])
    assert "send_mail" in double.prompt()  # which the model still sees
    form = json.dumps(double.requests[-1].params.structured_outputs or "", default=str)
    assert "send_mail" not in form
    fields = ASKED["allowed"] | {"tool_choice": {**ASKED["allowed"]["tool_choice"], "mode": "none"}}
    double.script = lambda prompt: Play(text="No.")
    response = json.loads((await create(gateway, **fields)).body)
    check(response)
    assert [item["type"] for item in response["output"]] == ["message"]


# -- over the WebSocket


async def test_turns_of_a_socket(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="Hi!", queued_s=0.05)
    async with connected(gateway) as client:
        await client.create("one", store=False)
        await client.create("two", store=False)  # waits for the first
        for _ in range(2):
            events = await client.response()
            check(events)
            assert all("stream_id" not in event for event in events)
        await client.create("three", store=False, previous_response_id=events[-1]["response"]["id"])
        last = (await client.response())[-1]["response"]
        assert "two" in double.prompt()
        await client.create("four", generate=False)
        check(await client.response())
    async with connected(gateway) as client:  # what was not stored is gone with its connection
        await client.create("x", previous_response_id=last["id"])
        refusal = await client.refusal()
        check(refusal)
        assert (refusal["status"], refusal["error"]["code"]) == (400, "previous_response_not_found")
        await client.create([{"role": "user", "content": "all of it"}], store=False)
        assert (await client.response())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"unheard_of": 1},
        {"temperature": "hot"},
        {"temperature": -1},
        {"background": True},
        {"input": [{"type": "function_call_output", "call_id": "unknown", "output": "x"}]},
    ],
)
async def test_a_failed_continuation_evicts(gateway: Gateway, wrong: dict[str, Any]) -> None:
    """Wherever it is refused: as a message, by its fields, or by its items."""
    async with connected(gateway) as client:
        await client.create("one", store=False)
        first = (await client.response())[-1]["response"]["id"]
        await client.create(previous_response_id=first, **wrong)
        assert (await client.refusal())["status"] == 400
        await client.create("again", previous_response_id=first)
        assert (await client.refusal())["error"]["code"] == "previous_response_not_found"


async def test_a_failed_fork_leaves_the_lane_that_it_came_from(gateway: Gateway) -> None:
    """Lanes are OpenAI's, for clients that ask for them by ``stream_id``."""
    async with connected(gateway) as client:
        await client.create("one", store=False, stream_id="a")
        first = (await client.response())[-1]["response"]["id"]
        await client.create("x", previous_response_id=first, stream_id="b", temperature=-1)
        assert (await client.refusal())["stream_id"] == "b"
        await client.create("two", previous_response_id=first, stream_id="a")
        assert (await client.response())[-1]["type"] == "response.completed"


async def test_a_new_chain_from_a_summary(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="Rain.")
    async with connected(gateway) as client:
        await client.create("It rains in Oslo.")
        first = (await client.response())[-1]["response"]["id"]
        body = json.dumps({"model": MODEL, "previous_response_id": first}).encode()
        raw = post(gateway, body).replace(b"/v1/chat/completions", b"/v1/responses/compact")
        made = json.loads((await exchange(gateway, raw)).body)
        check(made["output"])
        assert made["object"] == "response.compaction"
        assert {"id", "output", "created_at", "usage"} <= made.keys()
        assert made["output"][-1]["type"] == "compaction"
        fresh = [*made["output"], {"type": "message", "role": "user", "content": "So?"}]
        await client.create(fresh, store=False, previous_response_id=None)
        second = (await client.response())[-1]["response"]
        assert second["previous_response_id"] is None
        assert "Oslo" not in double.prompt()
        assert "Rain." in double.prompt()
        await client.create("And?", store=False, previous_response_id=second["id"])
        assert (await client.response())[-1]["type"] == "response.completed"
        assert "So?" in double.prompt()
        assert "Rain." in double.prompt()
