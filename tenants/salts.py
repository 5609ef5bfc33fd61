"""Cache salts, which keep one tenant's prefix cache apart from another's.

A salt is an HMAC-SHA-256, under a root secret of the server, of a message in which each part is
preceded by its length. So no two lists of parts give the same message, and knowing a tenant's id
(or one of its salts) tells nothing about any other salt.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from uuid import UUID

from tenants.errors import InvalidValue

MIN_ROOT_SECRET_BYTES = 16
_DOMAIN = b"sluice/cache-salt/v1"


@lru_cache(1024)  # every request of a tenant has the same
def cache_salt(root_secret: bytes, tenant_id: UUID, scope: str = "") -> str:
    """The salt of a tenant's region of the prefix cache: 64 hexadecimal digits.

    ``scope`` divides the region further (a client's own ``cache_salt``): it only ever narrows what
    is shared, it cannot reach another tenant's region. Raises ``InvalidValue`` for a root secret of
    fewer than 16 bytes and for a scope that is not valid Unicode.
    """
    if len(root_secret) < MIN_ROOT_SECRET_BYTES:
        raise InvalidValue(
            "root_secret", f"needs at least {MIN_ROOT_SECRET_BYTES} bytes, has {len(root_secret)}"
        )
    try:
        parts = (_DOMAIN, tenant_id.bytes, scope.encode())
    except UnicodeEncodeError:
        raise InvalidValue("cache_salt", "is not valid Unicode (lone surrogate)") from None
    return hmac.digest(root_secret, join(*parts), "sha256").hex()


def join(*parts: bytes) -> bytes:
    """Join parts unambiguously: each after its length in 8 bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
