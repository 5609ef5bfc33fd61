"""What a clock that was set back has left in the future would hold up tenants until it is reached.

Rates refill from a moment that is still to come, leases of the dead run on, and a month that a
wrong clock has begun never ends. Here all of it is brought back to the clock as it is now. And rows
that a worker's wrong clock put into a coming month of the ledger do not hinder its maintenance.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_ADD_PARTITIONS = """
    CREATE OR REPLACE FUNCTION usage_event_add_partitions(p_from date, p_months integer)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        v_month date;
        v_name text;
        v_added integer := 0;
    BEGIN
        FOR i IN 0 .. p_months - 1 LOOP
            v_month := date_trunc('month', p_from)::date + make_interval(months => i);
            v_name := to_char(v_month, '"usage_event_"YYYY"_"MM');
            IF to_regclass(v_name) IS NULL THEN{create}
                EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_name);
                EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_name);
                v_added := v_added + 1;
            END IF;
        END LOOP;
        RETURN v_added;
    END
    $$
"""
_CREATE = """
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                    v_name,
                    to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                    to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
                );"""
_TRY_TO_CREATE = f"""
                BEGIN{_CREATE}
                EXCEPTION WHEN check_violation THEN
                    -- The default partition has rows of this month: it keeps the others, too.
                    CONTINUE;
                END;"""

_UP = (
    _ADD_PARTITIONS.format(create=_TRY_TO_CREATE),
    # Up to a minute is left as it is: no rate holds up anybody for longer, and a clock that swings
    # gives nothing twice. So is the next month, for a clock that was set back over midnight: its
    # budget was begun, and is not given again. ``p_lease``: the longest that anybody takes.
    """
    CREATE FUNCTION quota_follow_clock(p_lease interval, p_now timestamptz)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        v_now timestamptz := coalesce(p_now, clock_timestamp());
        v_month date := limit_month(v_now);
    BEGIN
        PERFORM 1 FROM reservation WHERE expires_at > v_now + p_lease + interval '1 minute'
        ORDER BY request_id FOR UPDATE;
        UPDATE reservation SET expires_at = v_now + p_lease
        WHERE expires_at > v_now + p_lease + interval '1 minute';
        PERFORM 1 FROM limit_state
        WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month'
        ORDER BY scope_id FOR UPDATE;
        UPDATE limit_state SET
            refilled_at = CASE WHEN refilled_at > v_now + interval '1 minute' THEN v_now
                ELSE refilled_at END,
            month = CASE WHEN month > v_month + interval '1 month' THEN v_month ELSE month END
        WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month';
        UPDATE gateway_worker SET expires_at = v_now + p_lease
        WHERE expires_at > v_now + p_lease + interval '1 minute';
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION quota_follow_clock(interval, timestamptz)",
    _ADD_PARTITIONS.format(create=_CREATE),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
