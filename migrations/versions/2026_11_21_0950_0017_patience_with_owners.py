"""A lease that ran out is not a death: its owner may have been slow, or cut off from us.

The slot is free at once, as before. But the request is settled for its owner only after a while,
because what the owner settles itself, or a neighbour from its file, is exact.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_UP = (
    # Queued requests hold nothing that anybody settles: they go when their lease does.
    """
    CREATE FUNCTION quota_reap(p_patience interval, p_now timestamptz)
    RETURNS uuid LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
        v_now timestamptz := coalesce(p_now, clock_timestamp());
    BEGIN
        SELECT * INTO v_row FROM reservation
        WHERE expires_at <= v_now AND (state = 'queued' OR expires_at <= v_now - p_patience)
        ORDER BY expires_at LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF v_row.state = 'queued' THEN
            PERFORM quota_release(v_row.request_id, v_row.tenant_id, p_now);
        ELSE
            PERFORM quota_settle(v_row.request_id, v_row.tenant_id, v_row.key_id, v_row.model,
                'error', v_row.prompt_tokens, 0, v_row.generated_tokens, v_now, NULL,
                limit_cost(v_row.prompt_tokens, v_row.generated_tokens, v_row.prompt_price,
                    v_row.completion_price), p_now);
        END IF;
        RETURN v_row.request_id;
    END
    $$
    """,
    # As workers of the version before call it.
    """
    CREATE OR REPLACE FUNCTION quota_reap(p_now timestamptz)
    RETURNS uuid LANGUAGE sql AS $$
        SELECT quota_reap('0', p_now)
    $$
    """,
)

_DOWN = (
    """
    CREATE OR REPLACE FUNCTION quota_reap(p_now timestamptz)
    RETURNS uuid LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
        v_now timestamptz := coalesce(p_now, clock_timestamp());
    BEGIN
        SELECT * INTO v_row FROM reservation WHERE expires_at <= v_now
        ORDER BY expires_at LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF v_row.state = 'queued' THEN
            PERFORM quota_release(v_row.request_id, v_row.tenant_id, p_now);
        ELSE
            PERFORM quota_settle(v_row.request_id, v_row.tenant_id, v_row.key_id, v_row.model,
                'error', v_row.prompt_tokens, 0, v_row.generated_tokens, v_now, NULL,
                limit_cost(v_row.prompt_tokens, v_row.generated_tokens, v_row.prompt_price,
                    v_row.completion_price), p_now);
        END IF;
        RETURN v_row.request_id;
    END
    $$
    """,
    "DROP FUNCTION quota_reap(interval, timestamptz)",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
