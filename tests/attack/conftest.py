"""A database for each module of attacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import fresh_database, postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(scope="module")
def database(postgres_server: str) -> Iterator[str]:
    """The DSN of a fresh database of the session's PostgreSQL, which must not be killed: for that
    there is ``serving.own_database``."""
    yield from fresh_database(postgres_server)
