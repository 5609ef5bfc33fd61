"""Row-level security: which rows a statement sees is the database's decision, not the statement's.

Two roles without login, neither of them the tables' owner nor exempt from policies:

    sluice_app       serves requests; sees the rows of tenants its transaction has entered
    sluice_operator  the admin surface and housekeeping; sees all rows

A transaction enters tenants by ``set_config('sluice.tenants', 'id,id', true)``, which ends with it:
so a connection shared through a pooler carries nothing from one tenant to the next. A migration
that adds a table with a ``tenant_id`` calls ``protect`` for it; a test finds those that do not.
"""

from __future__ import annotations

APP = "sluice_app"
OPERATOR = "sluice_operator"


def protect(
    table: str, *, column: str = "tenant_id", grants: str = "SELECT, INSERT, UPDATE, DELETE"
) -> tuple[str, ...]:
    """Statements that force the policies on a table and grant the two roles its use."""
    # As a subquery, so that it is evaluated once per statement and not once per row.
    entered = f"{column} = ANY ((SELECT sluice_tenants())::uuid[])"
    return (
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY {table}_entered ON {table} TO {APP} "
        f"USING ({entered}) WITH CHECK ({entered})",
        f"CREATE POLICY {table}_all ON {table} TO {OPERATOR} USING (true) WITH CHECK (true)",
        f"GRANT {grants} ON {table} TO {APP}, {OPERATOR}",
    )


def unprotect(table: str) -> tuple[str, ...]:
    """Undo ``protect``."""
    return (
        f"REVOKE ALL ON {table} FROM {APP}, {OPERATOR}",
        f"DROP POLICY {table}_all ON {table}",
        f"DROP POLICY {table}_entered ON {table}",
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
    )
