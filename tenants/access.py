"""Checks what a valid key may do: its scopes, and the models that it may use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tenants.errors import NotAllowed
from tenants.types import ApiKey, Scope

_WIDER: Mapping[Scope, Scope] = {"usage": "admin", "responses": "chat"}
"""Scopes that another scope includes: ``admin`` may see usage, and ``chat`` may use the Responses
API."""


def require_scope(key: ApiKey, scope: Scope) -> None:
    """Raise ``NotAllowed`` unless the key has the scope, or one that includes it."""
    if scope not in key.scopes and _WIDER.get(scope) not in key.scopes:
        raise NotAllowed(
            f"The API key lacks the scope {scope!r}, it has {', '.join(key.scopes)}; "
            f"`sluice key create TENANT --scope {scope}` makes one that has it."
        )


def resolve_model(key: ApiKey, name: str, aliases: Mapping[str, str] = MappingProxyType({})) -> str:
    """The served model that a client with this key means by ``name``.

    The key's aliases are followed once, then ``aliases``, those of all keys. The list of allowed
    models contains served names and is checked last, so that no alias can bypass it. Raises
    ``NotAllowed``, naming what the client asked for.
    """
    model = key.model_aliases.get(name, name)
    model = aliases.get(model, model)
    if key.allowed_models and model not in key.allowed_models:
        allowed = ", ".join(visible_models(key, key.allowed_models))
        raise NotAllowed(f"The API key may not use {name!r}; it may use {allowed}.", field="model")
    return model


def visible_models(
    key: ApiKey, served: tuple[str, ...], aliases: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """The models that a listing shows to this key: those of ``served`` that it may use, then their
    aliases, and its own."""
    own = tuple(model for model in served if not key.allowed_models or model in key.allowed_models)
    of_all = (alias for alias, model in aliases.items() if model in own)
    of_key = (
        alias for alias, model in key.model_aliases.items() if aliases.get(model, model) in own
    )
    return tuple(dict.fromkeys((*own, *of_all, *of_key)))
