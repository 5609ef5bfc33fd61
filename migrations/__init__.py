"""Alembic migrations of the tenants' database, raw SQL, driven without an ini file.

A new one: ``python -c 'import migrations; print(migrations.create("add limits"))'``.
"""

from migrations.runner import check, create, current, downgrade, head, upgrade

__all__ = ["check", "create", "current", "downgrade", "head", "upgrade"]
