"""What the pages ask about signing in."""

from __future__ import annotations

import msgspec

from tenants.types import Scope


class KeySignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api_key: str


class SignInState(msgspec.Struct, frozen=True, kw_only=True):
    is_offered: bool = False
    """Whether one can sign in at a provider."""
    name: str | None = None
    """Who has; null: nobody."""
    id: str | None = None
    """The public id of the key that stands for them."""
    scopes: tuple[Scope, ...] = ()
    keeps_conversations: bool = False
    """Whether the chat page keeps what is said."""
