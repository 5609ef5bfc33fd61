"""Row-level security: the database decides which rows a statement sees.

There are two roles without login, which own no tables and are not exempt from policies:

    sluice_app       serves requests; sees the rows of tenants that its transaction has entered
    sluice_operator  for administration and maintenance; sees all rows

A transaction enters tenants by ``set_config('sluice.tenants', 'id,id', true)``. The setting ends
with the transaction, so that a connection that a pooler shares keeps nothing of a tenant. A
migration that adds a table with a ``tenant_id`` must call ``protect`` for it; a test finds those
that do not.
"""

from __future__ import annotations

APP = "sluice_app"
OPERATOR = "sluice_operator"


def protect(
    table: str, *, column: str = "tenant_id", grants: str = "SELECT, INSERT, UPDATE, DELETE"
) -> tuple[str, ...]:
    """The statements that force the policies on a table, and grant the two roles its use."""
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
    """The statements that undo ``protect``."""
    return (
        f"REVOKE ALL ON {table} FROM {APP}, {OPERATOR}",
        f"DROP POLICY {table}_all ON {table}",
        f"DROP POLICY {table}_entered ON {table}",
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
    )
