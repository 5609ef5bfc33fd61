from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from engine.messages import AdapterRef
from gateway import config as configuration
from gateway.admission.served_models import ServedModel, ServedModels
from gateway.errors import ModelNotFound
from tenants.errors import NotAllowed
from tenants.types import Adapter, ApiKey, Principal, Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def models(*, enabled: bool = True) -> ServedModels:
    document: dict[str, Any] = {"engine": {"model": "/models/base"}}
    if enabled:
        document["engine"]["enable_lora"] = True
        document["models"] = {"adapters_dir": "/adapters"}
    return ServedModels(configuration.parse(document))


def principal(*adapters: tuple[str, str], **key: Any) -> Principal:
    """adapters: (name, parent)."""
    tenant = Tenant(id=uuid4(), name="acme", created_at=NOW)
    return Principal(
        tenant=tenant,
        key=ApiKey(
            id=uuid4(),
            tenant_id=tenant.id,
            project_id=uuid4(),
            public_id="A" * 12,
            name="key",
            scopes=("chat",),
            created_at=NOW,
            **key,
        ),
        adapters=tuple(
            Adapter(
                id=uuid4(),
                tenant_id=tenant.id,
                name=name,
                parent=parent,
                path=f"acme/{name}",
                rank=8,
                digest="d",
                created_at=NOW,
            )
            for name, parent in adapters
        ),
    )


def test_the_servers_own_model_by_its_name_or_by_none() -> None:
    who = principal(("support", "base"))
    assert models().find(who, "base") == models().find(who, None) == ServedModel("base")
    assert models().adapter(who, "base") is None


def test_a_tenants_adapter_by_its_name() -> None:
    who = principal(("support", "base"))
    (adapter,) = who.adapters
    ref = AdapterRef(name=adapter.id.hex, path="/adapters/acme/support", digest="d")
    assert models().find(who, "support") == ServedModel("support", ref)
    assert models().names(who) == ("base", "support")
    assert models().adapter(who, "support") == adapter


@pytest.mark.parametrize(
    "who", [principal(), principal(("other", "base")), principal(("support", "another"))]
)
def test_what_is_anothers_is_nobodys(who: Principal) -> None:
    """Whether there is such an adapter elsewhere, or beside another server's model."""
    with pytest.raises(ModelNotFound) as caught:
        models().find(who, "support")
    assert str(caught.value) == "The model 'support' does not exist; this server has 'base'."
    assert "support" not in models().names(who)


def test_a_server_without_adapters_shows_none() -> None:
    who = principal(("support", "base"))
    assert models(enabled=False).names(who) == ("base",)
    with pytest.raises(ModelNotFound):
        models(enabled=False).find(who, "support")


def test_the_servers_own_name_is_the_servers() -> None:
    who = principal(("base", "base"))
    assert models().find(who, "base") == ServedModel("base")
    assert models().names(who) == ("base",)


def test_keys_may_be_bound_to_adapters_and_call_them_otherwise() -> None:
    who = principal(
        ("support", "base"),
        ("sales", "base"),
        allowed_models=("support",),
        model_aliases={"gpt-4": "support", "gpt-5": "base"},
    )
    assert models().names(who) == ("support", "gpt-4")
    assert models().find(who, "gpt-4").name == "support"
    assert models().adapter(who, "gpt-4") == who.adapters[0]
    for name in ("base", "sales", "gpt-5", "unknown"):
        with pytest.raises(NotAllowed, match="may use support, gpt-4"):
            models().find(who, name)
