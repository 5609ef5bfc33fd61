"""The schema of 0.1.0. Those before it were never released."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0116"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    *("roles", "types", "tenants", "limits", "ledger", "streams", "conversations", "files"),
    *("audit", "adapters", "engines", "webhooks"),
)


def upgrade() -> None:
    bind = op.get_bind()
    for name in TABLES:
        source.execute(bind, source.schema(name))
    source.replace_functions(bind)
    for name in ("triggers", "isolation"):
        source.execute(bind, source.schema(name))
    # From the last month on: requests that ended in it may still be settled.
    op.execute("SELECT usage_add_partitions((now() - interval '1 month')::date, 4)")
