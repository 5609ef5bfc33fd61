"""Checks what a valid key may do: its scopes, and the models that it may use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tenants.errors import NotAllowed
from tenants.types import ApiKey, Scope

_WIDER: Mapping[Scope, Scope] = {
    "responses": "chat",
    "usage": "billing",
    "billing": "view",
    "view": "admin",
    "admin": "owner",
}
"""The scope that includes each: ``chat`` may use the Responses API. Of those who see all tenants,
``billing`` sees what was used, ``view`` all that an administrator sees, ``admin`` may change it,
and ``owner`` may also say who administrates."""
ROLES: tuple[Scope, ...] = ("billing", "view", "admin", "owner")
"""The scopes that reach beyond their key's tenant."""


def has_scope(key: ApiKey, scope: Scope) -> bool:
    """Whether the key has the scope, or one that includes it."""
    wanted: Scope | None = scope
    while wanted is not None and wanted not in key.scopes:
        wanted = _WIDER.get(wanted)
    return wanted is not None


def require_scope(key: ApiKey, scope: Scope) -> None:
    """Raise ``NotAllowed`` unless the key has the scope, or one that includes it."""
    if not has_scope(key, scope):
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
