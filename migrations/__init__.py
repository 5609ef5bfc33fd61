"""Alembic migrations of the tenants' database, in SQL, without an ini file.

To create one: ``python -c 'import migrations; print(migrations.create("add limits"))'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from migrations.revisions import check, current, head

if TYPE_CHECKING:
    from migrations.runner import create, upgrade

__all__ = ["check", "create", "current", "head", "upgrade"]


def __getattr__(name: str) -> Any:
    """Import names on first use, so that alembic is imported only for migrations."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from migrations import runner

    return getattr(runner, name)
