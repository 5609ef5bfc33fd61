"""The ledger in monthly partitions, with its own table against doubles and sums by the hour.

A unique index of a partitioned table has to hold the partition key, so what makes a request unique
lives in ``usage_seen``. ``ledger_append`` writes all three or none.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = (
    "request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens, "
    "completion_tokens, created_at, end_user"
)
_CHECKS = """
    CONSTRAINT usage_event_key_id_fkey
        FOREIGN KEY (tenant_id, key_id) REFERENCES api_key (tenant_id, id),
    CONSTRAINT usage_event_model_check CHECK (char_length(model) BETWEEN 1 AND 200),
    CONSTRAINT usage_event_end_user_check CHECK (char_length(end_user) BETWEEN 1 AND 200),
    CONSTRAINT usage_event_status_check CHECK (
        status IN ('stop', 'length', 'tool_calls', 'cancelled', 'disconnected', 'error')
    ),
    CONSTRAINT usage_event_prompt_tokens_check CHECK (prompt_tokens >= 0),
    CONSTRAINT usage_event_cached_tokens_check CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
    CONSTRAINT usage_event_completion_tokens_check CHECK (completion_tokens >= 0)
"""

_UP = (
    "ALTER TABLE usage_event RENAME TO usage_event_0002",
    # The new table takes over the names.
    "DROP TRIGGER usage_event_append_only ON usage_event_0002",
    "ALTER TABLE usage_event_0002 DROP CONSTRAINT usage_event_key_id_fkey",
    "DROP INDEX usage_event_tenant_id_created_at_idx",
    f"""
    CREATE TABLE usage_event (
        request_id         uuid NOT NULL,
        tenant_id          uuid NOT NULL,
        key_id             uuid NOT NULL,
        model              text NOT NULL,
        status             text NOT NULL,
        prompt_tokens      integer NOT NULL,
        cached_tokens      integer NOT NULL,
        completion_tokens  integer NOT NULL,
        created_at         timestamptz NOT NULL,
        end_user           text,
        cost_micro         bigint NOT NULL DEFAULT 0,
        CONSTRAINT usage_event_cost_micro_check CHECK (cost_micro >= 0),
        {_CHECKS}
    ) PARTITION BY RANGE (created_at)
    """,
    "CREATE INDEX usage_event_tenant_id_created_at_idx ON usage_event (tenant_id, created_at)",
    # No row is ever without a place; what lands here came with a strange clock.
    "CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT",
    """
    CREATE FUNCTION usage_event_add_partitions(p_from date, p_months integer)
    RETURNS integer LANGUAGE plpgsql AS $$
    DECLARE
        v_month date;
        v_added integer := 0;
    BEGIN
        FOR i IN 0 .. p_months - 1 LOOP
            v_month := date_trunc('month', p_from)::date + make_interval(months => i);
            IF to_regclass(to_char(v_month, '"usage_event_"YYYY"_"MM')) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                    to_char(v_month, '"usage_event_"YYYY"_"MM'),
                    to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                    to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
                );
                v_added := v_added + 1;
            END IF;
        END LOOP;
        RETURN v_added;
    END
    $$
    """,
    "SELECT usage_event_add_partitions((now() - interval '1 month')::date, 4)",
    """
    CREATE TABLE usage_seen (
        request_id  uuid CONSTRAINT usage_seen_pkey PRIMARY KEY,
        tenant_id   uuid NOT NULL,
        created_at  timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE usage_rollup (
        tenant_id          uuid NOT NULL,
        key_id             uuid NOT NULL,
        model              text NOT NULL,
        hour               timestamptz NOT NULL,
        requests           bigint NOT NULL,
        prompt_tokens      bigint NOT NULL,
        cached_tokens      bigint NOT NULL,
        completion_tokens  bigint NOT NULL,
        cost_micro         bigint NOT NULL,
        CONSTRAINT usage_rollup_pkey PRIMARY KEY (tenant_id, hour, key_id, model)
    ) WITH (fillfactor = 70)
    """,
    f"INSERT INTO usage_event ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_event_0002",
    """
    INSERT INTO usage_seen (request_id, tenant_id, created_at)
    SELECT request_id, tenant_id, created_at FROM usage_event
    """,
    """
    INSERT INTO usage_rollup
    SELECT
        tenant_id, key_id, model, date_trunc('hour', created_at, 'UTC'), count(*),
        sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), 0
    FROM usage_event
    GROUP BY 1, 2, 3, 4
    """,
    "DROP TABLE usage_event_0002",
    # Of rows, so that it holds in every partition too, whichever is named.
    """
    CREATE TRIGGER usage_event_append_only
    BEFORE UPDATE OR DELETE ON usage_event
    FOR EACH ROW EXECUTE FUNCTION usage_event_is_append_only()
    """,
    """
    CREATE TRIGGER usage_event_not_truncated
    BEFORE TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION usage_event_is_append_only()
    """,
    """
    CREATE FUNCTION ledger_append(
        p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text,
        p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer,
        p_created_at timestamptz, p_end_user text, p_cost_micro bigint
    ) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO usage_seen (request_id, tenant_id, created_at)
        VALUES (p_request_id, p_tenant_id, p_created_at)
        ON CONFLICT (request_id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        INSERT INTO usage_event (
            request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
            completion_tokens, created_at, end_user, cost_micro
        )
        VALUES (
            p_request_id, p_tenant_id, p_key_id, p_model, p_status, p_prompt_tokens,
            p_cached_tokens, p_completion_tokens, p_created_at, p_end_user, p_cost_micro
        );
        INSERT INTO usage_rollup AS r (
            tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
            completion_tokens, cost_micro
        )
        VALUES (
            p_tenant_id, p_key_id, p_model, date_trunc('hour', p_created_at, 'UTC'), 1,
            p_prompt_tokens, p_cached_tokens, p_completion_tokens, p_cost_micro
        )
        ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
            requests = r.requests + 1,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_micro = r.cost_micro + excluded.cost_micro;
        RETURN true;
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION ledger_append(uuid, uuid, uuid, text, text, integer, integer, integer, "
    "timestamptz, text, bigint)",
    "DROP TABLE usage_rollup",
    "DROP TABLE usage_seen",
    "ALTER TABLE usage_event RENAME TO usage_event_0003",
    "DROP INDEX usage_event_tenant_id_created_at_idx",
    f"""
    CREATE TABLE usage_event (
        request_id         uuid CONSTRAINT usage_event_pkey PRIMARY KEY,
        tenant_id          uuid NOT NULL,
        key_id             uuid NOT NULL,
        model              text NOT NULL,
        status             text NOT NULL,
        prompt_tokens      integer NOT NULL,
        cached_tokens      integer NOT NULL,
        completion_tokens  integer NOT NULL,
        created_at         timestamptz NOT NULL,
        end_user           text,
        {_CHECKS}
    )
    """,
    f"INSERT INTO usage_event ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_event_0003",
    "CREATE INDEX usage_event_tenant_id_created_at_idx ON usage_event (tenant_id, created_at)",
    "DROP TABLE usage_event_0003",
    "DROP FUNCTION usage_event_add_partitions(date, integer)",
    """
    CREATE TRIGGER usage_event_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION usage_event_is_append_only()
    """,
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
