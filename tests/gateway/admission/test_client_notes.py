from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest

from gateway.admission.client_notes import client_notes
from gateway.schemas.chat import ChatCompletionRequest
from gateway.schemas.completions import CompletionRequest
from tests.gateway.serving import Gateway, chat_body
from tests.gateway.ws_client import ready


def notes(**fields: Any) -> dict[str, str]:
    return client_notes(msgspec.convert(chat_body(**fields), ChatCompletionRequest))


def test_nothing_is_said_of_nothing() -> None:
    assert notes() == {}
    assert notes(metadata={}) == {}


def test_names_are_ours_and_values_are_cut() -> None:
    found = notes(safety_identifier="u", prompt_cache_key="k" * 1000, metadata={"a=1 admin": "x\n"})
    assert found == {
        "user": "u",
        "prompt_cache_key": "k" * 512,
        "metadata": '{"a=1 admin": "x\\n"}',
    }
    assert json.loads(notes(metadata={"a" * 65: "x" * 9000})["metadata"]) == {"a" * 64: "x" * 512}
    many = {str(number): "x" * 500 for number in range(1000)}
    assert len(notes(metadata=many)["metadata"]) == 2048


def test_completions_have_a_user_only() -> None:
    body = {"model": "m", "prompt": "x", "user": "u"}
    assert client_notes(msgspec.convert(body, CompletionRequest)) == {"user": "u"}


@pytest.mark.asyncio
async def test_a_turn_has_a_log_line_of_its_own(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="gateway.sockets.chat_session"):
        async with ready(gateway) as client:
            await client.chat("quiet")
            await client.turn("quiet")
            await client.chat("t", metadata={"a": "b"}, user="u")
            started = (await client.turn("t"))[0]
    (record,) = [r for r in caplog.records if r.name == "gateway.sockets.chat_session"]
    assert record.__dict__["fields"] == {
        "request_id": started["request_id"],
        "user": "u",
        "metadata": '{"a": "b"}',
    }
