"""Checks connection strings of PostgreSQL, and describes them without their password."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from tenants.errors import InvalidValue

_SCHEMES = ("postgresql", "postgres")


def check_dsn(dsn: str) -> str:
    """Return the DSN. Raises ``InvalidValue`` unless it is a ``postgresql://`` address."""
    try:
        parts = urlsplit(dsn)
        scheme = parts.scheme
        _ = parts.port
        parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidValue("dsn", f"cannot be parsed: {error}") from None
    if scheme not in _SCHEMES:
        raise InvalidValue("dsn", "must look like postgresql://user:password@host:5432/database")
    return dsn


def describe(dsn: str) -> str:
    """The hosts and the database of a DSN, for messages, without user and password."""
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", []))
    return f"PostgreSQL at {hosts or 'the default address'}{parts.path}"
