from __future__ import annotations

from fractions import Fraction
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import InvalidValue
from tenants.limits import Limits, Price
from tenants.store import Store
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_key

MILLION = 1_000_000


INT32, MONTHLY = 2**31 - 1, 10**15
RANGES = [
    ("requests_per_minute", 1, INT32),
    ("tokens_per_minute", 1, INT32),
    ("max_concurrent", 1, INT32),
    ("max_queued", 0, INT32),
    ("monthly_tokens", 0, MONTHLY),
    ("monthly_cost_micro", 0, MONTHLY),
    ("max_cached_blocks", 0, INT32),
    ("priority", -(2**15) + 1, 2**15 - 1),
]


@pytest.mark.parametrize(("field", "least", "most"), RANGES)
def test_the_ends_of_a_range_belong_to_it(field: str, least: int, most: int) -> None:
    for value in (least, most, None):
        assert getattr(Limits(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, least - 1) for field, least, _ in RANGES),
        *((field, most + 1) for field, _, most in RANGES),
        ("weight", 0.0),
        ("weight", float("nan")),
        ("weight", float("inf")),
    ],
)
def test_impossible_limits_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidValue) as caught:
        Limits(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_any_weight_above_nothing_is_one() -> None:
    assert Limits(weight=1e-6).weight == 1e-6


def test_every_whole_number_has_a_range() -> None:
    fields = {field for field, _, _ in RANGES} | {"weight"}
    assert fields == set(Limits.__struct_fields__)


def test_misspelt_limit_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="requests_per_second"):
        msgspec.json.decode(b'{"requests_per_second": 5}', type=Limits)


@given(*(st.integers(0, 10**6) for _ in range(3)), *(st.integers(0, 10**9) for _ in range(3)))
def test_cost_is_the_exact_sum_rounded_up_once(
    prompt: int, cached: int, completion: int, high: int, low: int, price: int
) -> None:
    cached = min(cached, prompt)
    prices = Price(prompt=max(high, low), cached=min(high, low), completion=price)
    exact = (
        Fraction(prices.prompt * (prompt - cached), MILLION)
        + Fraction(prices.cached * cached, MILLION)
        + Fraction(price * completion, MILLION)
    )
    assert prices.cost(prompt, cached, completion) == ceil(exact)
    assert prices.cost(prompt, cached, completion) <= prices.cost(prompt, 0, completion + 1)


def test_a_price_may_be_nothing_and_all_tokens_may_cost_the_same() -> None:
    assert Price().cost(10**6, 10**6, 10**6) == 0
    dear = Price(prompt=10**9, cached=10**9, completion=10**9)
    assert dear.cost(10, 4, 1) == 11 * 1_000


@pytest.mark.parametrize(
    ("field", "prices"),
    [
        ("prompt", {"prompt": -1}),
        ("prompt", {"prompt": 10**9 + 1}),
        ("cached", {"cached": -1}),
        ("completion", {"completion": -1}),
        ("completion", {"completion": 10**9 + 1}),
        ("cached", {"cached": 2, "prompt": 1}),
    ],
)
def test_impossible_prices(field: str, prices: dict[str, int]) -> None:
    with pytest.raises(InvalidValue) as caught:
        Price(**prices)
    assert caught.value.field == field


@pytest.mark.asyncio
async def test_most_specific_scope_decides_priority_and_weight(store: Store) -> None:
    _, principal = await make_key(store)
    tenant, key = principal.tenant, principal.key
    assert (principal.priority, principal.weight) == (tenant.priority, tenant.weight)
    seen = []
    for kind, scope_id, limits in [
        ("tenant", tenant.id, Limits(priority=5, weight=2.0)),
        ("key", key.id, Limits(weight=4.0, max_concurrent=3)),
        ("project", key.project_id, Limits(priority=-1, weight=3.0)),
    ]:
        await store.put_limits(tenant.id, kind, scope_id, limits)  # type: ignore[arg-type]
        record = await store.find_key(key.public_id)
        assert record is not None
        seen.append((record.principal.priority, record.principal.weight))
    assert seen == [(5, 2.0), (5, 4.0), (-1, 4.0)]
    assert record is not None
    assert [policy.scope_kind for policy in record.principal.policies] == [
        "key",
        "project",
        "tenant",
    ]


@pytest.mark.asyncio
async def test_principal_without_policies_has_none() -> None:
    _, principal = await make_key(MemoryStore())
    assert principal.policies == ()
