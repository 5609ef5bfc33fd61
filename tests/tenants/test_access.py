from __future__ import annotations

import msgspec
import pytest

from tenants.access import has_scope, require_scope, resolve_model, visible_models
from tenants.errors import NotAllowed
from tenants.types import ApiKey
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_key

pytestmark = pytest.mark.asyncio


async def key(**changes: object) -> ApiKey:
    _, principal = await make_key(MemoryStore())
    return msgspec.structs.replace(principal.key, **changes)


async def test_scope_is_named_with_those_there_are() -> None:
    own = await key(scopes=("chat", "usage"))
    require_scope(own, "usage")
    with pytest.raises(NotAllowed, match=r"it has chat, usage; .*TENANT --scope admin` makes"):
        require_scope(own, "admin")


async def test_key_without_list_may_use_every_model() -> None:
    assert resolve_model(await key(), "demo") == "demo"


async def test_alias_is_followed_once() -> None:
    own = await key(model_aliases={"gpt-4o": "demo", "demo": "other"})
    assert resolve_model(own, "gpt-4o") == "demo"


async def test_alias_does_not_lead_around_the_list() -> None:
    own = await key(allowed_models=("small",), model_aliases={"fast": "small", "sly": "large"})
    assert resolve_model(own, "fast") == resolve_model(own, "small") == "small"
    for name in ("sly", "large", "nothing"):
        with pytest.raises(NotAllowed, match=f"may not use '{name}'; it may use small, fast"):
            resolve_model(own, name)


async def test_listing_shows_what_would_resolve() -> None:
    own = await key(
        allowed_models=("small", "gone"),
        model_aliases={"fast": "small", "sly": "large", "old": "gone"},
    )
    assert visible_models(own, ("large", "small")) == ("small", "fast")
    assert visible_models(await key(), ("large", "small")) == ("large", "small")


async def test_a_role_may_what_those_below_it_may() -> None:
    ranks = ("usage", "billing", "view", "admin", "owner")
    for place, scope in enumerate(ranks):
        own = await key(scopes=(scope,))
        for other_place, other in enumerate(ranks):
            assert has_scope(own, other) == (place >= other_place)  # type: ignore[arg-type]
        assert not has_scope(own, "chat")


async def test_who_may_chat_may_use_responses() -> None:
    for scopes in (("chat",), ("responses",)):
        require_scope(await key(scopes=scopes), "responses")
    for wider, scope in (("responses", "chat"), ("usage", "responses"), ("admin", "chat")):
        with pytest.raises(NotAllowed):
            require_scope(await key(scopes=(wider,)), scope)  # type: ignore[arg-type]
