"""Chat completions that are stored, because their client asked for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from gateway.answers.chat import ChatEncoder
from gateway.config import Config
from gateway.generation.answer import Answer
from gateway.generation.delta import Delta
from gateway.generation.events import Around, Event
from gateway.generation.generation import Generation
from gateway.schemas.chat import ChatCompletionRequest
from gateway.streams.trim_schedule import TrimSchedule
from tenants.chats import Chats, StoredChat
from tenants.errors import TenantsError
from tenants.outage import CALM_S, OutageLog

logger = logging.getLogger(__name__)

Keep = Callable[[bytes], Awaitable[None]]
"""Stores a whole answer; it does not raise."""


class KeptChats:
    """Stores chats. They are kept as long as responses, and as many bytes of them."""

    def __init__(self, config: Config, store: Chats) -> None:
        self.store = store
        self._retention = timedelta(seconds=config.tenants.response_retention_s)
        self._max_bytes = config.tenants.max_response_bytes
        self._trims = TrimSchedule()
        self._unstored = OutageLog(logger, level=logging.ERROR, calm_s=CALM_S)

    async def keep(self, tenant_id: UUID, body: ChatCompletionRequest, answer: bytes) -> None:
        """Store an answer to ``body``. While the database is away it is not stored."""
        whole: dict[str, Any] = msgspec.json.decode(answer)
        metadata = whole.pop("metadata", {})
        asked = [_bare(message) for message in msgspec.to_builtins(body.messages)]
        chat = StoredChat(
            id=whole["id"],
            model=whole["model"],
            metadata=metadata,
            body=msgspec.json.encode(whole),
            messages=msgspec.json.encode(asked),
            created_at=datetime.now(UTC),
        )
        try:
            await self.store.put(tenant_id, chat, self._retention)
            size = len(chat.body) + len(chat.messages)
            if self._trims.is_due(tenant_id, size, self._max_bytes):
                await self.store.trim(tenant_id, self._max_bytes)
        except TenantsError as error:
            self._unstored.failed("%s is not stored: %s", chat.id, error)
        else:
            self._unstored.succeeded("Chats are stored again")


class KeptEncoder(ChatEncoder):
    """Also collects what it streams, for ``body``."""

    def delta(self, delta: Delta) -> list[Event]:
        self.add(delta)
        return super().delta(delta)

    def text_form(self, index: int) -> Around | None:
        return None


class KeptAnswer(Answer):
    """A stream whose answer is stored before its last event is sent."""

    encoder: KeptEncoder

    def __init__(self, generation: Generation, encoder: KeptEncoder, keep: Keep) -> None:
        super().__init__(generation, encoder)
        self._keep = keep

    async def _end(self, last: Sequence[Event]) -> Sequence[Event]:
        if self.failure is None:
            await self._keep(self.encoder.body(await self._usage()))
        return last


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}
