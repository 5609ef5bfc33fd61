"""Broken connections to ``server.workers`` processes: the kernel chooses who reads on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_workers import make_config, make_key, pg_dsn, postgres_server, serving
from tests.gateway.raw_http import events
from tests.gateway.routes.test_responses import events_of

__all__ = ["pg_dsn", "postgres_server"]
pytestmark = pytest.mark.pg

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "temperature": 0}


class Client:
    """A connection of its own for each request, so that the kernel chooses a worker each time."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(headers=self._headers, timeout=60) as client:
            return await client.request(method, f"{self._url}{path}", **options)

    async def read(
        self, method: str, path: str, limit: int, **options: Any
    ) -> tuple[httpx.Headers, bytes, bool]:
        """At most ``limit`` bytes, cut to whole events, and whether they are all."""
        body, limit = b"", max(limit, 1)
        async with (
            httpx.AsyncClient(headers=self._headers, timeout=60) as client,
            client.stream(method, f"{self._url}{path}", **options) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= limit:
                    events, end, _ = body[:limit].rpartition(b"\n\n")
                    return response.headers, events + end, False
        return response.headers, body, True


@pytest.mark.asyncio
async def test_whichever_worker_is_asked(tmp_path: Path, pg_dsn: str) -> None:
    luck = random.Random(2)
    config = make_config(tmp_path, pg_dsn)
    key = await make_key(config)
    async with serving(config) as url:
        client = Client(url, key)
        chat = {"model": "demo", "messages": QUESTION, "stream": True, "resumable": True, **LONG}
        headers, body, ended = await client.read(
            "POST", "/v1/chat/completions", luck.randrange(5000), json=chat
        )
        stream_id = headers["x-sluice-stream-id"]
        while not ended:
            path = f"/v1/streams/{stream_id}?from={body.count(b'data: ')}"
            _, more, ended = await client.read("GET", path, luck.randrange(5000))
            body += more
        for _ in range(8):  # with the kernel's choice, both workers answer some
            whole = await client.request("GET", f"/v1/streams/{stream_id}")
            assert whole.content == body
        assert events(body)[-1] == "[DONE]"

        asked = {"model": "demo", "input": "Hi", "background": True, "stream": True}
        _, body, ended = await client.read(
            "POST", "/v1/responses", 6000, json=asked | {"max_output_tokens": 150}
        )
        response_id = events_of(body)[0]["response"]["id"]
        while not ended:
            after = body.count(b"data: ") - 1
            path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
            _, more, ended = await client.read("GET", path, luck.randrange(2000, 9000))
            body += more
        told = events_of(body)
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        found = await asyncio.gather(
            *(client.request("GET", f"/v1/responses/{response_id}") for _ in range(8))
        )
        assert {answer.content for answer in found} == {found[0].content}
        assert found[0].json() == told[-1]["response"]

        keyed = {"headers": {"idempotency-key": "k"}, "json": chat | {"stream": False}}
        keyed["json"].pop("resumable")
        answers = await asyncio.gather(
            *(client.request("POST", "/v1/chat/completions", **keyed) for _ in range(8))
        )
        assert {answer.content for answer in answers} == {answers[0].content}
        assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7
