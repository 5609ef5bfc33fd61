"""Checks connection strings of PostgreSQL, and describes them without their password."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tenants.errors import InvalidValue

_SCHEMES = ("postgresql", "postgres")
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
"""What asyncpg would not find without saying what it looks for."""


def check_dsn(dsn: str) -> str:
    """Return the DSN. Raises ``InvalidValue`` unless it is a ``postgresql://`` address."""
    try:
        parts = urlsplit(dsn)
        scheme = parts.scheme
        _ = parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidValue("dsn", f"cannot be parsed: {error}") from None
    if scheme not in _SCHEMES:
        raise InvalidValue("dsn", "must look like postgresql://user:password@host:5432/database")
    for port in ",".join(options.get("port", ())).split(","):
        if port and not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
            raise InvalidValue("dsn", "names a port that is no number up to 65535")
    for name in _FILES:
        for file in options.get(name, ()):
            if not Path(file).is_file():
                raise InvalidValue("dsn", f"names {file} as {name}, which is no file")
    return dsn


def describe(dsn: str) -> str:
    """The hosts and the database of a DSN, for messages, without user and password."""
    parts = urlsplit(dsn)
    hosts = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", []))
    return f"PostgreSQL at {hosts or 'the default address'}{parts.path}"
