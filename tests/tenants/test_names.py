from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import InvalidValue
from tenants.names import MAX_NAME_LENGTH, normalize_name
from tenants.store import Store


@given(st.text())
def test_a_name_is_refused_or_settled_at_once(text: str) -> None:
    try:
        name = normalize_name("name", text)
    except InvalidValue as error:
        refused = error
    else:
        assert normalize_name("name", name) == name
        assert normalize_name("name", unicodedata.normalize("NFD", text)) == name
        assert 1 <= len(name) <= MAX_NAME_LENGTH
        assert name.strip() == name
        return
    assert refused.field == "name"
    assert str(refused).encode()  # no message may carry a lone surrogate into a log


@pytest.mark.parametrize("name", ["a", "acme GmbH & Co. KG", "名前", "🚰", "x" * 200, "a b"])
def test_ordinary_names(name: str) -> None:
    assert normalize_name("name", name) == name


def test_length_counts_after_composition() -> None:
    assert normalize_name("name", "e\u0301" * 200) == "\u00e9" * 200
    with pytest.raises(InvalidValue, match="has 201 characters, 200 is the most"):
        normalize_name("name", "x" * 201)


@pytest.mark.pg
@pytest.mark.asyncio
async def test_the_database_takes_every_character_we_take(pg_store: Store) -> None:
    taken = []
    for number in range(sys.maxunicode + 1):
        if unicodedata.category(chr(number)) not in ("Cn", "Co"):  # unassigned, private
            try:
                taken.append(normalize_name("name", f"x{chr(number)}x")[1:-1])
            except InvalidValue:
                continue
    assert len(taken) > 100_000
    names = ["".join(taken[start : start + 60]) for start in range(0, len(taken), 60)]
    names = [normalize_name("name", f"x{name}x") for name in names]
    await pg_store.create_tenant("first")
    for name in names[::8]:  # each takes a round trip
        assert (await pg_store.create_tenant(name)).name == name
