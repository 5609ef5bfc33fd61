"""Alembic migrations of the tenants' database, raw SQL, driven without an ini file.

A new one: ``python -c 'import migrations; print(migrations.create("add limits"))'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from migrations.revisions import check, current, head

if TYPE_CHECKING:
    from migrations.runner import create, downgrade, upgrade

__all__ = ["check", "create", "current", "downgrade", "head", "upgrade"]


def __getattr__(name: str) -> Any:
    """Alembic is imported when something is migrated, not when somebody only asks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from migrations import runner

    return getattr(runner, name)
