"""Requests whose month has no partition go when their month is due, as all others do.

They are in the default partition: a clock was wrong, or nobody maintained the ledger in time. And
idempotency keys are looked up together, in one round trip.
"""

from __future__ import annotations

from alembic import op

from migrations.isolation import APP, OPERATOR

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_UP = (
    # A portion of them; how many went. Through the parent, whose policy lets the owner see them.
    # Others that write to this partition wait for the trigger: it is off for this portion only.
    """
    CREATE FUNCTION usage_event_drop_strays(p_before timestamptz)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
    SET lock_timeout = '2s' AS $$
    DECLARE
        v_dropped integer;
    BEGIN
        IF NOT EXISTS (
            SELECT FROM usage_event
            WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
        ) THEN
            RETURN 0;
        END IF;
        ALTER TABLE usage_event_default DISABLE TRIGGER usage_event_append_only;
        DELETE FROM usage_event
        WHERE tableoid = 'usage_event_default'::regclass AND ctid = ANY (ARRAY (
            SELECT ctid FROM usage_event
            WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
            LIMIT 10000
        ));
        GET DIAGNOSTICS v_dropped = ROW_COUNT;
        ALTER TABLE usage_event_default ENABLE TRIGGER usage_event_append_only;
        RETURN v_dropped;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION usage_event_drop_strays(timestamptz) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION usage_event_drop_strays(timestamptz) TO {OPERATOR}",
    # A function, because the tenants must be entered before the rows are looked at.
    """
    CREATE FUNCTION claims_find(p_key_hashes bytea[], p_tenant_ids uuid[])
    RETURNS TABLE (tenant_id uuid, key_hash bytea, body_hash bytea, answer_id text)
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM sluice_enter_all(p_tenant_ids);
        RETURN QUERY
            SELECT k.tenant_id, k.key_hash, k.body_hash, k.answer_id
            FROM unnest(p_key_hashes, p_tenant_ids) AS wanted (key_hash, tenant_id)
            JOIN idempotency_key AS k USING (tenant_id, key_hash)
            WHERE k.expires_at > now();
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION claims_find(bytea[], uuid[]) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION claims_find(bytea[], uuid[]) TO {APP}, {OPERATOR}",
)

_DOWN = (
    "DROP FUNCTION claims_find(bytea[], uuid[])",
    "DROP FUNCTION usage_event_drop_strays(timestamptz)",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
