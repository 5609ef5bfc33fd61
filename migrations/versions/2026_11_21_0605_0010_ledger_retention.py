"""How long requests are kept one by one: whole months of the ledger go, the hourly sums stay.

A month is dropped, never deleted row by row. What makes a request unique goes with it, in portions.
"""

from __future__ import annotations

from alembic import op

from migrations.isolation import OPERATOR

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_UP = (
    # Rows come in the order of time: a summary of each range of pages is enough.
    "CREATE INDEX usage_seen_created_at_idx ON usage_seen USING brin (created_at)",
    # Of partitions that end before a day; how many went. Only the owner may drop them.
    """
    CREATE FUNCTION usage_event_drop_partitions(p_before date)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
    SET lock_timeout = '2s' AS $$
    DECLARE
        v_name text;
        v_dropped integer := 0;
    BEGIN
        FOR v_name IN
            SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'usage_event'::regclass
                AND c.relname ~ '^usage_event_[0-9]{4}_[0-9]{2}$'
                AND to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month' <= p_before
            ORDER BY c.relname
        LOOP
            EXECUTE format('DROP TABLE %I', v_name);
            v_dropped := v_dropped + 1;
        END LOOP;
        RETURN v_dropped;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION usage_event_drop_partitions(date) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION usage_event_drop_partitions(date) TO {OPERATOR}",
    f"GRANT DELETE ON usage_seen TO {OPERATOR}",
)

_DOWN = (
    f"REVOKE DELETE ON usage_seen FROM {OPERATOR}",
    "DROP FUNCTION usage_event_drop_partitions(date)",
    "DROP INDEX usage_seen_created_at_idx",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
