"""Hundreds of connections with a key, or none, that ask over and over for what costs no tokens: no
limit of tokens or concurrency holds them back, and all of it needs the database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tenants.limits import Limits
from tests.attack.flooding import flooding
from tests.attack.neighbour import Neighbour
from tests.attack.serving import Deployment, Member, fill_ledger
from tests.postgres import run_aside

NUM_CONNECTIONS = 300
NUM_ROWS = 3000
"""Of the hostile tenant in the ledger."""
WATCH_S = 6.0
MAX_FIRST_S = 0.5
"""The longest wait for a first token beside it: the neighbour's limits are read from a database
that works for the others with all it has."""


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, replay_tokens_per_s=20) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def hostile(deployment: Deployment) -> Member:
    """A tenant that keeps large conversations, and has asked for much."""
    member = deployment.member("hostile")
    headers = {"authorization": f"Bearer {member.key}"}
    parts = [{"type": "input_text", "text": "x " * 20} for _ in range(2000)]
    body = {"items": [{"type": "message", "role": "user", "content": parts}] * 7}
    with httpx.Client(base_url=deployment.url, timeout=60, headers=headers) as client:
        for _ in range(20):
            made = client.post("/v1/conversations", json=body)
            assert made.status_code == 200, made.text
    run_aside(fill_ledger(deployment, member, NUM_ROWS))
    return member


def _request(method: str, path: str, key: str, body: object = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


ASKED: dict[str, Callable[[str], bytes]] = {
    "sums of usage": lambda key: _request("GET", "/admin/v1/usage?bucket_width=1h", key),
    "rows of usage": lambda key: _request("GET", "/admin/v1/usage/requests?format=csv", key),
    "searches": lambda key: _request("GET", "/v1/conversations?search=never+said", key),
    "stored chats": lambda key: _request("GET", "/v1/chat/completions?metadata[a]=b", key),
    "deletions": lambda key: _request("DELETE", f"/v1/files/file-{'0' * 32}", key),
    "conversations": lambda key: _request("POST", "/v1/conversations", key, {}),
    "tickets": lambda key: _request("POST", "/v1/ws-tickets", key),
    "sign-ins": lambda key: _request("POST", "/auth/session", key, {"api_key": key}).replace(
        b"host: x", b"host: x\r\norigin: http://x"
    ),
}


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ASKED)
async def test_a_neighbour_hardly_feels_what_is_asked(
    deployment: Deployment, hostile: Member, kind: str
) -> None:
    member = deployment.member(f"beside {kind}", Limits(max_concurrent=100))
    before = deployment.memory()
    async with Neighbour(deployment, member.key) as neighbour:
        calm = await neighbour.watch_for(WATCH_S)
        asked = ASKED[kind](hostile.key)
        async with (
            neighbour.watch() as attacked,
            flooding(deployment.host, deployment.port, asked, num=NUM_CONNECTIONS),
        ):
            await asyncio.sleep(WATCH_S)
    now = deployment.memory()
    more = {pid: now[pid] - was for pid, was in before.items() if pid in now}
    print(kind, "calm", calm, "attacked", attacked, "more bytes", more)
    assert before.keys() == now.keys(), "a process has ended"
    attacked.assert_unharmed(calm)
    assert max(attacked.ttfts_s) <= MAX_FIRST_S
