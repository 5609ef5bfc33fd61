"""API keys: ``sk-slc-<public id, 12>-<secret, 40>-<checksum, 6>``, all three in base62.

The public id names the key in logs, and its row is found by it. The secret has 238 bits and is
shown once. The store has only an HMAC-SHA-256 of the whole key under a pepper of the server, so
that a copy of the database is not enough to verify a key. The checksum is the CRC-32 of everything
before it: malformed keys are refused without a query, and secret scanners can recognize keys. It
is no protection, because everybody can compute it.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field

from tenants.errors import AuthenticationFailed, InvalidValue

PREFIX = "sk-slc"
PUBLIC_ID_LENGTH = 12
SECRET_LENGTH = 40
CHECKSUM_LENGTH = 6
"""Six digits are enough for every CRC-32, since 62**6 > 2**32."""
KEY_LENGTH = len(PREFIX) + PUBLIC_ID_LENGTH + SECRET_LENGTH + CHECKSUM_LENGTH + len("---")
"""Characters of a whole key."""
MIN_PEPPER_BYTES = 16

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PUBLIC_ID = re.compile(f"[0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}}")
_KEY = re.compile(
    f"({PREFIX}-({_PUBLIC_ID.pattern})-[0-9A-Za-z]{{{SECRET_LENGTH}}})"
    f"-([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. ``text`` is shown once and stored nowhere; ``repr`` hides it."""

    text: str = field(repr=False)
    public_id: str
    key_hash: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key, which may or may not exist."""

    text: str = field(repr=False)
    public_id: str


def mint(pepper: bytes) -> MintedKey:
    """A new random key. Raises ``InvalidValue`` for a pepper of fewer than 16 bytes."""
    public_id = _random_base62(PUBLIC_ID_LENGTH)
    body = f"{PREFIX}-{public_id}-{_random_base62(SECRET_LENGTH)}"
    text = f"{body}-{_checksum(body)}"
    return MintedKey(text=text, public_id=public_id, key_hash=hash_key(text, pepper))


def public_id_of(identity: bytes, pepper: bytes) -> str:
    """The public id of somebody who has no key's text: always the same, and nobody else's."""
    digits = int.from_bytes(hmac.digest(check_pepper(pepper), identity, "sha256"))
    return "".join(_BASE62[digits // 62**place % 62] for place in range(PUBLIC_ID_LENGTH))


def parse(text: str) -> ParsedKey:
    """Check the form and the checksum of a key. Raises ``AuthenticationFailed``."""
    match = _KEY.fullmatch(text)
    if match is None or match[3] != _checksum(match[1]):
        raise AuthenticationFailed("malformed")
    return ParsedKey(text=text, public_id=match[2])


def hash_key(text: str, pepper: bytes) -> bytes:
    """HMAC-SHA-256 (32 bytes) of the whole key under the server's pepper.

    A plain keyed hash is enough: the secret has more entropy than a slow password hash would add.
    """
    return hmac.digest(check_pepper(pepper), text.encode(), "sha256")


def check_pepper(pepper: bytes) -> bytes:
    """Return the pepper. Raises ``InvalidValue`` when it has fewer than 16 bytes."""
    if len(pepper) < MIN_PEPPER_BYTES:
        raise InvalidValue("pepper", f"needs at least {MIN_PEPPER_BYTES} bytes, has {len(pepper)}")
    return pepper


def is_public_id(text: str) -> bool:
    """Whether a text has the form of a public id."""
    return _PUBLIC_ID.fullmatch(text) is not None


def _random_base62(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
