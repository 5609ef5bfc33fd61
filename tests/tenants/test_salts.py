from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.errors import InvalidValue
from tenants.keys import hash_key
from tenants.salts import cache_salt, join

ROOT = b"a root secret for the tests"
TENANT = UUID("00000000-0000-0000-0000-000000000001")
parts = st.lists(st.binary(max_size=12), max_size=4)


@given(parts, parts)
@example([b"a", b"b"], [b"ab"])
@example([b"a", b""], [b"a"])
@example([b""], [])
@example([b"\0" * 8], [b"", b""])
def test_joined_parts_are_told_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (join(*one) == join(*other)) == (one == other)


@given(st.lists(st.tuples(st.uuids(), st.text(max_size=20)), unique=True, max_size=20))
@example([(TENANT, ""), (TENANT, "\0")])
@example([(UUID(int=0x61), ""), (UUID(int=0), "a")])
def test_no_two_regions_share_a_salt(regions: list[tuple[UUID, str]]) -> None:
    salts = {cache_salt(ROOT, tenant_id, scope) for tenant_id, scope in regions}
    assert len(salts) == len(regions)


def test_salt_is_stable() -> None:
    """A new salt for an old tenant would empty its cache."""
    assert cache_salt(ROOT, TENANT) == cache_salt(ROOT, UUID(int=1), "")
    assert cache_salt(ROOT, TENANT) == (
        "4150e4fd4decc3f26d30c2716d185d84a2aa9ab05c34e8599275d416b46d0e12"
    )


def test_salt_is_text_that_holds_no_input() -> None:
    salt = cache_salt(ROOT, TENANT, "scope")
    assert re.fullmatch(r"[0-9a-f]{64}", salt)
    assert TENANT.hex not in salt


def test_salt_depends_on_the_root_secret() -> None:
    assert cache_salt(ROOT, TENANT) != cache_salt(ROOT + b"!", TENANT)


def test_salt_is_not_a_key_hash_under_the_same_secret() -> None:
    """Domain separation: the same secret elsewhere gives other values for the same message."""
    assert bytes.fromhex(cache_salt(ROOT, TENANT)) != hash_key(str(TENANT), ROOT)


def test_short_root_secret_is_refused() -> None:
    with pytest.raises(InvalidValue, match="root_secret: needs at least 16 bytes, has 15"):
        cache_salt(bytes(15), TENANT)


def test_scope_must_be_unicode() -> None:
    with pytest.raises(InvalidValue, match="cache_salt"):
        cache_salt(ROOT, TENANT, "\ud800")
