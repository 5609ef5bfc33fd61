"""The ledger names the endpoint of each request."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    # Columns that may be null rewrite no row. Workers of the version before call the functions
    # without the endpoint, which has a default.
    source.execute(
        bind,
        """
        ALTER TABLE usage_event ADD COLUMN endpoint text;
        ALTER TABLE reservation ADD COLUMN endpoint text;
        ALTER TYPE quota_asked ADD ATTRIBUTE endpoint text;
        DROP FUNCTION IF EXISTS quota_settle(uuid[], uuid[], uuid[], text[], text[], integer[],
            integer[], integer[], timestamptz[], text[], bigint[], timestamptz);
        DROP FUNCTION IF EXISTS quota_reserve(uuid, uuid, uuid, uuid, text, bigint, bigint, bigint,
            bigint, uuid, interval, timestamptz);
        DROP FUNCTION IF EXISTS quota_reserve_many(uuid[], uuid[], uuid[], uuid[], text[], bigint[],
            bigint[], bigint[], bigint[], uuid[], interval[], timestamptz);
        """,
    )
    source.replace_functions(bind)
