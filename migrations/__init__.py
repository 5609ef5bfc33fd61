"""Alembic migrations of the tenants' database, raw SQL, driven without an ini file."""

from migrations.runner import check, current, downgrade, head, upgrade

__all__ = ["check", "current", "downgrade", "head", "upgrade"]
