"""OpenAI's Conversations; items are those of ``schemas.responses``."""

from __future__ import annotations

import msgspec

from gateway.schemas.shown import IdList, Shown


class CreateConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    items: list[msgspec.Raw] | None = None
    metadata: dict[str, str] | None = None


class UpdateConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata: dict[str, str] | None


class AddItems(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    items: list[msgspec.Raw]


class ConversationObject(Shown, frozen=True, kw_only=True):
    id: str
    object: str = "conversation"
    created_at: int
    used_at: int
    """When an item was added last."""
    metadata: dict[str, str]


class ConversationList(IdList[ConversationObject], frozen=True, kw_only=True):
    """Of a key."""


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "conversation.deleted"
    deleted: bool = True
