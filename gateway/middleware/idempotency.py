"""``Idempotency-Key``: a request that is sent several times runs once and is billed once.

The answer to the first request with a key is recorded as the items of a stream. All requests with
the key, the first one included, read that stream, whichever worker they reach. So they follow an
answer that is under way, and get an ended one byte for byte.

A key stands for its answer for ``retention_s``, within its tenant. It is released at once if the
answer is an error, or was given up because no client waited for it, so that the client can try
again. A key that comes with another body is refused.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import timedelta
from functools import partial
from uuid import UUID

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import context
from gateway.errors import (
    Gone,
    IdempotencyKeyReused,
    InvalidRequestError,
    StreamNotFound,
    Unavailable,
)
from gateway.middleware.recorded_answer import AnswerWork, give
from gateway.peers.peers import Peers
from gateway.peers.routed_ids import mint
from gateway.streams.log import StreamReader
from gateway.streams.streams import Streams
from gateway.streams.trim_schedule import TrimSchedule
from gateway.transport.disconnect import until_disconnect
from tenants.errors import TenantsError
from tenants.outage import CALM_S, OutageLog
from tenants.shared import SharedState

logger = logging.getLogger(__name__)

HEADER = "idempotency-key"
MAX_KEY_CHARS = 255
MAX_KEYS = 10_000
"""The most keys of one tenant; the oldest are dropped."""
_MAX_ATTEMPTS = 5


def hash_key(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def key_of(scope: Scope) -> str | None:
    """The request's key; None if it has none, or its operation takes none."""
    operation = context.of(scope).operation
    if operation is None or not operation.idempotent:
        return None
    return Headers(scope=scope).get(HEADER)


class Idempotency:
    """Handles requests with the header, to ``paths``; all others pass through."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        shared: SharedState,
        streams: Streams,
        peers: Peers,
        retention_s: float,
    ) -> None:
        self._app = app
        self._shared = shared
        self._streams = streams
        self._peers = peers
        self._retention_s = retention_s
        self._trims = TrimSchedule()
        self._unreleased = OutageLog(logger, calm_s=CALM_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = key_of(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        if not 1 <= len(key) <= MAX_KEY_CHARS:
            raise InvalidRequestError(
                f"Must have from 1 to {MAX_KEY_CHARS} characters.", param=HEADER
            )
        body = await Request(scope, receive).body()
        known = context.of(scope)
        reader, is_replay = await self._reader(scope, key, body)
        try:
            if is_replay:
                known.notes["idempotent_replay"] = "true"
            else:
                await self._trim(context.principal_of(scope).tenant.id)
            answer = give(reader, send, is_replay=is_replay)
            await until_disconnect(receive, answer, known.disconnect)
        finally:
            reader.close()

    async def _reader(self, scope: Scope, key: str, body: bytes) -> tuple[StreamReader, bool]:
        """A reader of the answer, and whether another request with the key runs or ran for it."""
        principal = context.principal_of(scope)
        tenant_id = principal.tenant.id
        key_hash = hash_key(key)
        body_hash = hashlib.sha256(scope["path"].encode() + b"\0" + body).digest()
        for _ in range(_MAX_ATTEMPTS):
            answer_id = mint("answer", self._peers.worker_id)
            ended = partial(self._ended, tenant_id, key_hash, answer_id)
            work = AnswerWork(self._app, scope, body, ended)
            # The stream is opened before the key is claimed: whoever finds the claim can read it.
            reader: StreamReader = await self._streams.open(
                answer_id,
                work,
                tenant_id=tenant_id,
                kind="answer",
                retention_s=self._retention_s,
            )
            claim = None
            try:
                claim = await self._shared.claim(
                    tenant_id,
                    key_hash,
                    body_hash=body_hash,
                    answer_id=answer_id,
                    retention=timedelta(seconds=self._retention_s),
                )
            finally:
                if claim is None or claim.answer_id != answer_id:
                    reader.close()
                    work.close()
            if claim.answer_id == answer_id:
                work.start()
                return reader, False
            if claim.body_hash != body_hash:
                raise IdempotencyKeyReused(
                    "This key came with another body before; send each request with its own.",
                    param=HEADER,
                )
            try:
                answer = claim.answer_id
                replay = await self._streams.follow_as(principal, answer, kind="answer", after=0)
                return replay, True
            except (StreamNotFound, Gone):
                # Its worker died, or its answer was too long to be kept whole.
                await self._shared.release_claim(tenant_id, key_hash, claim.answer_id)
        raise Unavailable("The key changes hands too quickly; try again.", retry_after_s=1)

    async def _ended(
        self, tenant_id: UUID, key_hash: bytes, answer_id: str, is_good: bool, is_whole: bool
    ) -> None:
        if is_good:
            return
        try:
            await self._shared.release_claim(tenant_id, key_hash, answer_id)
            if not is_whole:  # Another request may have just read the claim.
                await self._streams.forget(answer_id, tenant_id)
        except TenantsError as error:
            self._unreleased.failed(
                "%s failed, and its idempotency key stands for it: %s", answer_id, error
            )
        else:
            self._unreleased.succeeded("Failed answers leave their idempotency keys again")

    async def _trim(self, tenant_id: UUID) -> None:
        if self._trims.is_due(tenant_id, 1, MAX_KEYS):
            try:
                await self._shared.trim_claims(tenant_id, MAX_KEYS)
            except TenantsError as error:
                logger.warning("more idempotency keys than should be stay: %s", error)
