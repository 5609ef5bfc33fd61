from __future__ import annotations

from tests.postgres import empty_pg_dsn, postgres_server

__all__ = ["empty_pg_dsn", "postgres_server"]
