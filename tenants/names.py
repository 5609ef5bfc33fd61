"""Checks the values that stores accept: names, models, weights and others.

PostgreSQL's ``text`` accepts neither NUL nor lone surrogates. A name with control or formatting
characters (bidirectional overrides, zero width) could look like another one on a screen.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

from tenants.errors import InvalidValue
from tenants.keys import is_public_id
from tenants.types import SCOPES, USAGE_BUCKETS, USAGE_GROUPS, Scope, UsageBucket, UsageGroup

MAX_NAME_LENGTH = 200
MAX_URL_LENGTH = 2048
MAX_PRIORITY = 2**15 - 1
MAX_KEY_MODELS = 100
MAX_CONVERSATION_DAYS = 36_500
KEY_HASH_BYTES = 32

_FORBIDDEN_CATEGORIES = {
    "Cc": "control characters",
    "Cf": "invisible formatting characters",
    "Cs": "lone surrogates",
    "Zl": "line separators",
    "Zp": "paragraph separators",
}


def normalize_name(field: str, text: str) -> str:
    """The name in Unicode NFC, as stores keep and find it. Raises ``InvalidValue``."""
    name = unicodedata.normalize("NFC", text)
    if not name or name != name.strip():
        raise InvalidValue(field, "must not be empty, nor begin or end with white space")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidValue(field, f"has {len(name)} characters, {MAX_NAME_LENGTH} is the most")
    for character in name:
        forbidden = _FORBIDDEN_CATEGORIES.get(unicodedata.category(character))
        if forbidden is not None:
            raise InvalidValue(field, f"must not hold {forbidden} (U+{ord(character):04X})")
    return name


def check_server_url(url: str) -> str:
    """The URL of an MCP server as stores keep and find it. Raises ``InvalidValue``."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidValue("url", f"must be a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host or not url.isascii():
        raise InvalidValue("url", "must be like https://example.com/mcp")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidValue("url", "must have neither a user, a password nor a fragment")
    if len(url) > MAX_URL_LENGTH or any(character.isspace() for character in url):
        raise InvalidValue("url", f"must have at most {MAX_URL_LENGTH} characters and no spaces")
    host = f"[{host}]" if ":" in host else host
    is_usual = port in (None, {"http": 80, "https": 443}[parts.scheme])
    place = host if is_usual else f"{host}:{port}"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), parts.query, ""))


def check_weight(weight: float) -> float:
    """Return a weight. Raises ``InvalidValue`` unless it is finite and greater than zero."""
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidValue("weight", f"must be a finite number greater than 0, is {weight}")
    return float(weight)


def check_priority(priority: int) -> int:
    """Return a priority. Raises ``InvalidValue`` unless it fits in 16 bits."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidValue("priority", f"must be within ±{MAX_PRIORITY}, is {priority}")
    return priority


def check_days(days: int | None) -> int | None:
    """Return for how long conversations are kept. Raises ``InvalidValue`` for what is no number of
    days."""
    if days is not None and not 0 <= days <= MAX_CONVERSATION_DAYS:
        raise InvalidValue("conversation_days", f"must be 0 to {MAX_CONVERSATION_DAYS}, is {days}")
    return days


def check_scopes(scopes: Sequence[Scope]) -> tuple[Scope, ...]:
    """The scopes without repetitions. Raises ``InvalidValue`` if there is none, or an unknown
    one."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        given = f"{unknown[0]!r} is no scope" if unknown else "none given"
        raise InvalidValue("scopes", f"{given}; choose from {', '.join(SCOPES)}")
    return tuple(dict.fromkeys(scopes))


def check_key(public_id: str, key_hash: bytes, expires_at: datetime | None) -> None:
    """Check that a key is one that ``tenants.keys`` could have made. Raises ``InvalidValue``."""
    if not is_public_id(public_id):
        raise InvalidValue("public_id", "must be 12 base62 characters")
    if len(key_hash) != KEY_HASH_BYTES:
        raise InvalidValue("key_hash", f"must have {KEY_HASH_BYTES} bytes, has {len(key_hash)}")
    if expires_at is not None and expires_at.tzinfo is None:
        raise InvalidValue("expires_at", "needs a time zone")


def check_models(models: Sequence[str]) -> tuple[str, ...]:
    """The names of models, normalized and without repetitions. Raises ``InvalidValue``."""
    if len(models) > MAX_KEY_MODELS:
        raise InvalidValue("allowed_models", f"has {len(models)}, {MAX_KEY_MODELS} is the most")
    return tuple(dict.fromkeys(normalize_name("allowed_models", model) for model in models))


def check_aliases(aliases: Mapping[str, str]) -> dict[str, str]:
    """A mapping of what clients may call a model to the model's name. Raises ``InvalidValue``."""
    field = "model_aliases"
    if len(aliases) > MAX_KEY_MODELS:
        raise InvalidValue(field, f"has {len(aliases)}, {MAX_KEY_MODELS} is the most")
    return {
        normalize_name(field, alias): normalize_name(field, model)
        for alias, model in aliases.items()
    }


def check_grace(grace: timedelta) -> timedelta:
    """Return the time for which a replaced key keeps working. Raises ``InvalidValue`` unless it is
    within 0 and 366 days."""
    if not timedelta() <= grace <= timedelta(days=366):
        raise InvalidValue("grace", f"must be within 0 and 366 days, is {grace}")
    return grace


def check_groups(groups: Sequence[UsageGroup]) -> tuple[UsageGroup, ...]:
    """Return what usage is summed by. Raises ``InvalidValue`` for an unknown group."""
    for group in groups:
        if group not in USAGE_GROUPS:
            known = ", ".join(USAGE_GROUPS)
            raise InvalidValue("group_by", f"{group!r} is none of {known}")
    return tuple(groups)


def check_bucket(bucket: UsageBucket) -> UsageBucket:
    """Return the length of time that usage is summed over. Raises ``InvalidValue`` if unknown."""
    if bucket not in USAGE_BUCKETS:
        raise InvalidValue("bucket", f"{bucket!r} is none of {', '.join(USAGE_BUCKETS)}")
    return bucket


def check_range(start: datetime, end: datetime) -> None:
    """Raise ``InvalidValue`` unless both times have a time zone, and the end is not before the
    start."""
    for field, moment in (("start", start), ("end", end)):
        if moment.tzinfo is None:
            raise InvalidValue(field, "needs a time zone")
    if end < start:
        raise InvalidValue("end", "must not be before start")
