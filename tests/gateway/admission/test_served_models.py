from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from engine.messages import AdapterRef
from gateway import config as configuration
from gateway.admission.model import Model
from gateway.admission.served_models import ServedModel, ServedModels
from gateway.config import Config
from gateway.errors import ModelNotFound
from tenants.errors import NotAllowed
from tenants.types import Adapter, ApiKey, Principal, Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def models(*, enabled: bool = True) -> ServedModels:
    document: dict[str, Any] = {"engine": {"model": "/models/base"}}
    if enabled:
        document["engine"]["enable_lora"] = True
        document["models"] = {"adapters_dir": "/adapters"}
    return ServedModels([known(configuration.parse(document))])


def known(config: Config) -> Model:
    """As much of a model as finding it needs."""
    fleet = SimpleNamespace(has_served=True)
    empty = dict.fromkeys(Model.__dataclass_fields__)
    return Model(**{**empty, "config": config, "engine": fleet})  # type: ignore[arg-type]


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
    who, served = principal(("support", "base")), models()
    assert served.find(who, "base") == served.find(who, None) == ServedModel("base", served.default)
    assert served.adapter(who, "base") is None


def test_a_tenants_adapter_by_its_name() -> None:
    who, served = principal(("support", "base")), models()
    (adapter,) = who.adapters
    ref = AdapterRef(name=adapter.id.hex, path="/adapters/acme/support", digest="d")
    assert served.find(who, "support") == ServedModel("support", served.default, ref)
    assert served.names(who) == ("base", "support")
    assert served.adapter(who, "support") == adapter


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
    who, served = principal(("base", "base")), models()
    assert served.find(who, "base") == ServedModel("base", served.default)
    assert served.names(who) == ("base",)


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


def several() -> ServedModels:
    document = {
        "engine": {"enable_lora": True},
        "models": [
            {"engine": {"model": "/models/base"}, "aliases": ["usual"], "adapters_dir": "/a"},
            {"engine": {"model": "/models/small"}, "adapters_dir": "/b", "price_prompt": 3},
        ],
    }
    return ServedModels([known(one) for one in configuration.parse(document).each])


def test_each_of_several_models_by_its_names() -> None:
    who, served = principal(("support", "small")), several()
    base, small = served.all
    assert served.find(who, None) == served.find(who, "usual") == ServedModel("base", base)
    assert served.find(who, "small") == ServedModel("small", small)
    found = served.find(who, "support")
    assert found.base is small
    assert found.adapter is not None
    assert found.adapter.path == "/b/acme/support"
    assert served.names(who) == ("base", "small", "support", "usual")
    assert served.lowest_price.prompt == 0
    with pytest.raises(ModelNotFound, match="this server has 'base', 'small'"):
        served.find(who, "large")


def test_an_alias_is_no_way_past_the_allowed_models() -> None:
    served = several()
    for aliases in ({}, {"mine": "usual"}):
        who = principal(allowed_models=("small",), model_aliases=aliases)
        assert served.names(who) == ("small",)
        for name in ("base", "usual", *aliases):
            with pytest.raises(NotAllowed):
                served.find(who, name)
    who = principal(allowed_models=("base",), model_aliases={"mine": "usual"})
    assert served.names(who) == ("base", "usual", "mine")
    assert served.find(who, "mine").name == "base"


def test_a_model_is_listed_once_it_was_served() -> None:
    served = several()
    served.all[0].engine.has_served = False  # type: ignore[misc]
    assert served.names(principal()) == ("small",)
    assert served.names(principal(), with_loading=True) == ("base", "small", "usual")
