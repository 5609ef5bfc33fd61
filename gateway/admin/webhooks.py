"""Sends events to webhooks, signed as the Standard Webhooks specification says (version 1).

    webhook-id           the event, the same at each attempt
    webhook-timestamp    Unix seconds of the attempt
    webhook-signature    "v1," and the base64 of HMAC-SHA-256(secret, id.timestamp.body); two of
                         them, with a space between, for a day after the secret was rotated

Every worker sends; the store gives a webhook to one of them at a time, so that a slow receiver
holds up nobody else. What is not taken with a status of 2xx is tried again at the times that the
specification proposes, for three days in all.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import math
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx2

from gateway import outbound
from gateway.version import version
from tenants.errors import ObjectNotFound, StoreUnavailable
from tenants.outage import OutageLog
from tenants.webhooks import Backlog, Due, Webhook, Webhooks

logger = logging.getLogger(__name__)

AGAIN_S: Sequence[float] = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""The waits after the first attempts; after as many and one more, an event is given up."""
POLL_S = 2.0
LOOK_S = 10.0
"""How often the backlog is counted, for the metrics."""
LEASE_S = 60.0
TIMEOUT_S = 15.0
"""For one attempt, however slowly the receiver answers. The lease must outlast a few of them."""
PAUSE_S = 15.0
"""After a receiver that did not take an event: others come first."""
MAX_AT_ONCE = 64
"""Receivers that a worker sends to at the same time."""
MAX_DUE = 20
"""Events for a receiver in turn, before others of which more is due."""
MAX_ANSWER_BYTES = 64 * 1024
GONE = 410
"""A receiver's answer with which it asks for no more."""


def secret_of(webhook: Webhook, root: bytes, *, is_old: bool = False) -> str:
    """What its receiver checks signatures with. It follows from the deployment's own secret, so it
    is stored nowhere. ``is_old``: the one before the last rotation."""
    number = webhook.secret_version - is_old
    key = hmac.digest(root, f"sluice webhook {webhook.id} {number}".encode(), "sha256")
    return f"whsec_{base64.b64encode(key).decode()}"


def headers_of(
    webhook: Webhook, root: bytes, event_id: str, body: bytes, at: datetime
) -> dict[str, str]:
    """What a receiver checks."""
    seconds = int(at.timestamp())
    secrets = [secret_of(webhook, root)]
    if webhook.old_secret_until is not None and at < webhook.old_secret_until:
        secrets.append(secret_of(webhook, root, is_old=True))
    signed = f"{event_id}.{seconds}.".encode() + body
    signatures = (
        hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
        for secret in secrets
    )
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in signatures),
        "content-type": "application/json",
        "user-agent": f"sluice/{version()}",
    }


class WebhookSender:
    """Sends what is due, as long as ``run`` runs."""

    def __init__(
        self,
        webhooks: Webhooks,
        root: bytes,
        allowed_networks: Sequence[str],
        *,
        poll_s: float = POLL_S,
        again_s: Sequence[float] = AGAIN_S,
    ) -> None:
        """root: the deployment's secret. allowed_networks: as for ``outbound.client``."""
        self._webhooks = webhooks
        self._root = root
        self._allowed_networks = allowed_networks
        self._poll_s = poll_s
        self._again_s = again_s
        self._outage = OutageLog(logger)
        self._looked_at = -math.inf
        self.backlog = Backlog()
        """That of all workers."""
        self.num_attempts = {"delivered": 0, "again": 0, "failed": 0}
        """Of this worker, by how they ended: taken, to be tried again, given up."""

    async def run(self) -> None:
        """Send until cancelled. What is under way then is sent again by another worker."""
        serving: set[asyncio.Task[None]] = set()
        async with (
            outbound.client(self._allowed_networks, max_connections=MAX_AT_ONCE) as client,
            asyncio.TaskGroup() as group,
        ):
            while True:
                await self._look()
                for webhook in await self._claim(MAX_AT_ONCE - len(serving)):
                    task = group.create_task(self._serve(client, webhook))
                    serving.add(task)
                    task.add_done_callback(serving.discard)
                # Random, so that workers that start together do not ask together.
                await asyncio.sleep(self._poll_s * random.uniform(0.5, 1.0))

    async def _look(self) -> None:
        """While the store is away, what is known stays; ``_claim`` says that it is."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            with suppress(StoreUnavailable):
                self.backlog = await self._webhooks.backlog()
                self._looked_at = time.monotonic()

    async def _claim(self, limit: int) -> Sequence[Webhook]:
        if limit == 0:
            return ()
        try:
            claimed = await self._webhooks.claim(limit, timedelta(seconds=LEASE_S))
        except StoreUnavailable as error:
            self._outage.failed("Webhooks wait for the store: %s", error)
            return ()
        self._outage.succeeded("Webhooks are sent again")
        return claimed

    async def _serve(self, client: httpx2.AsyncClient, webhook: Webhook) -> None:
        """Send a webhook's events in turn, up to one that is not taken."""
        started_at, has_failed = time.monotonic(), False
        try:
            for due in await self._webhooks.due(webhook.id, MAX_DUE):
                has_failed = not await self._send(client, webhook, due)
                if has_failed or time.monotonic() - started_at > LEASE_S - 2 * TIMEOUT_S:
                    break
            pause_s = PAUSE_S if has_failed else 0.0
            await self._webhooks.release(webhook.id, timedelta(seconds=pause_s))
        except StoreUnavailable as error:  # The lease ends by itself.
            logger.warning("the webhook %s waits for the store: %s", webhook.id, error)
        except ObjectNotFound:
            pass  # It was deleted meanwhile.

    async def _send(self, client: httpx2.AsyncClient, webhook: Webhook, due: Due) -> bool:
        body, now = due.body.encode(), datetime.now(UTC)
        headers = headers_of(webhook, self._root, f"evt_{due.event_id.hex}", body, now)
        status = None
        try:
            answer = await outbound.fetch(
                client,
                "POST",
                webhook.url,
                content=body,
                headers=headers,
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_ANSWER_BYTES,
            )
            status, told = answer.status_code, str(answer.status_code)
        except TimeoutError:
            told = f"no answer within {TIMEOUT_S:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            told = str(error) or type(error).__name__
        has_come = status is not None and 200 <= status < 300
        await self._note(webhook, due, told, has_come=has_come, is_gone=status == GONE)
        return has_come

    async def _note(
        self, webhook: Webhook, due: Due, told: str, *, has_come: bool, is_gone: bool
    ) -> None:
        again_in = None
        is_last = is_gone or due.num_attempts >= len(self._again_s)
        if not has_come and not is_last:
            wait_s = self._again_s[due.num_attempts] * random.uniform(1.0, 1.2)
            again_in = timedelta(seconds=wait_s)
        self.num_attempts["delivered" if has_come else "failed" if is_last else "again"] += 1
        await self._webhooks.note(
            webhook.id,
            due.event_id,
            state="delivered" if has_come else "failed" if is_last else "pending",
            answer=told[:200].replace("\0", ""),
            again_in=again_in,
        )
        if is_gone:
            await self._webhooks.update(webhook.id, disabled=True)
            logger.warning("the webhook %s is disabled: its receiver says 410", webhook.id)
        elif not has_come and is_last:
            logger.warning(
                "the webhook %s has not taken the event %s: %s", webhook.id, due.event_id, told
            )
