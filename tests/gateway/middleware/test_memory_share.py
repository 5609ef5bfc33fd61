from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.middleware.memory_share import LARGE_BYTES, MOST, MemoryShare
from gateway.routes.table import OPERATIONS
from gateway.transport.extensions import Disconnect
from tenants.limits import QuotaAnswer
from tenants.types import ApiKey, Principal, Tenant

pytestmark = pytest.mark.asyncio

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
WHOLE: Message = {**START, "headers": [(b"content-length", b"5")]}
PART: Message = {"type": "http.response.body", "body": b"x", "more_body": True}


class Requests:
    """Requests that are worked on until a test lets them go on."""

    def __init__(self, work: ASGIApp | None = None, send: Send | None = None) -> None:
        self.num_begun = 0
        self.known: list[context.RequestContext] = []
        self.sends: list[Send] = []
        self.end = asyncio.Event()
        self._share = MemoryShare(work or self._work)
        self._send = send or _nothing
        self._tasks: list[asyncio.Task[None]] = []

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_begun += 1
        self.known.append(context.of(scope))
        self.sends.append(send)
        await self.end.wait()

    async def come(
        self, number: int, method: str, path: str, *, tenant: UUID, num_bytes: int | None = 10
    ) -> list[asyncio.Task[None]]:
        """``num_bytes``: what the header says of the body; None for a chunked one."""
        header = (b"transfer-encoding", b"chunked")
        if num_bytes is not None:
            header = (b"content-length", b"%d" % num_bytes)
        tasks = []
        for _ in range(number):
            scope: Scope = {"type": "http", "method": method, "path": path, "headers": [header]}
            known = context.attach(scope, _nothing)
            known.disconnect = Disconnect()
            known.principal = _of(tenant)
            known.operation = next(o for o in OPERATIONS if (o.method, o.path) == (method, path))
            tasks.append(asyncio.ensure_future(self._share(scope, _never, self._send)))
            tasks[-1].disconnect = known.disconnect  # type: ignore[attr-defined]
        self._tasks += tasks
        await self.settle()
        return tasks

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        self.end.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _of(tenant_id: UUID) -> Principal:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    key = ApiKey(
        id=uuid4(),
        tenant_id=tenant_id,
        project_id=uuid4(),
        public_id="key",
        name="key",
        scopes=("chat",),
        created_at=moment,
    )
    return Principal(tenant=Tenant(id=tenant_id, name="acme", created_at=moment), key=key)


async def _nothing(message: Message) -> None:
    pass


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("method", "path", "num_bytes", "is_bounded"),
    [
        ("GET", "/v1/conversations/{conversation_id}/items", 0, True),
        ("POST", "/v1/tokenize", 10, True),
        ("POST", "/v1/messages/count_tokens", 10, True),
        ("POST", "/v1/chat/completions", LARGE_BYTES, True),
        ("POST", "/v1/chat/completions", None, True),
        ("POST", "/v1/chat/completions", LARGE_BYTES - 1, False),
        ("POST", "/v1/responses/{response_id}/cancel", 0, False),
        ("DELETE", "/v1/responses/{response_id}", 0, False),
        ("POST", "/v1/files", LARGE_BYTES, False),
        ("GET", "/admin/v1/usage", 0, False),
    ],
)
async def test_few_of_a_tenant_hold_much_and_others_pass(
    method: str, path: str, num_bytes: int | None, is_bounded: bool
) -> None:
    requests, busy, quiet = Requests(), uuid4(), uuid4()
    await requests.come(3 * MOST, method, path, tenant=busy, num_bytes=num_bytes)
    assert requests.num_begun == (MOST if is_bounded else 3 * MOST)
    await requests.come(1, method, path, tenant=quiet, num_bytes=num_bytes)
    assert requests.num_begun == (MOST if is_bounded else 3 * MOST) + 1
    await requests.finish()
    assert requests.num_begun == 3 * MOST + 1


async def admit(requests: Requests) -> None:
    requests.known[0].admitted(QuotaAnswer(state="running"))


def say(*messages: Message) -> Callable[[Requests], Any]:
    async def go_on(requests: Requests) -> None:
        for message in messages:
            await requests.sends[0](message)

    return go_on


@pytest.mark.parametrize(
    ("go_on", "lets_another_in"),
    [(admit, True), (say(START), True), (say(WHOLE), False), (say(WHOLE, PART), True)],
    ids=["admitted", "a stream", "a whole answer", "in pieces"],
)
async def test_what_holds_no_more_lets_another_in(
    go_on: Callable[[Requests], Any], lets_another_in: bool
) -> None:
    requests = Requests()
    path, much = "/v1/chat/completions", LARGE_BYTES
    await requests.come(MOST + 2, "POST", path, tenant=uuid4(), num_bytes=much)
    await go_on(requests)
    await go_on(requests)  # It leaves once.
    await requests.settle()
    assert requests.num_begun == MOST + lets_another_in
    await requests.finish()


async def test_who_leaves_while_waiting_takes_no_turn() -> None:
    requests, tenant = Requests(), uuid4()
    tasks = await requests.come(MOST + 2, "POST", "/v1/tokenize", tenant=tenant)
    tasks[MOST].disconnect.leave()  # type: ignore[attr-defined]
    with pytest.raises(ClientDisconnect):
        await tasks[MOST]
    await requests.finish()
    assert requests.num_begun == MOST + 1


async def test_a_large_answer_holds_its_turn_until_it_is_read() -> None:
    """Servers take a message at once, and wait in the next one until it is read."""
    sent: list[Message] = []
    is_read = asyncio.Event()

    async def send(message: Message) -> None:
        if len(sent) > 1:
            await is_read.wait()
        sent.append(message)

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await send(WHOLE)
        await send({"type": "http.response.body", "body": b"x" * LARGE_BYTES})

    requests = Requests(work, send)
    (task,) = await requests.come(1, "POST", "/v1/tokenize", tenant=uuid4())
    assert not task.done()
    is_read.set()
    await task
    assert [(len(m.get("body", b"")), m.get("more_body")) for m in sent] == [
        (0, None),
        (LARGE_BYTES, True),
        (0, False),
    ]
