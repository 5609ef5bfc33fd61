"""Limits of tenants, projects and keys, what is used of them, and what is reserved.

``limit_state`` counts in the units of ``tenants.buckets`` (60,000,000 to a request or token), so
refilling never rounds.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = (
    """
    CREATE TABLE limit_policy (
        scope_id             uuid CONSTRAINT limit_policy_pkey PRIMARY KEY,
        scope_kind           text NOT NULL,
        tenant_id            uuid NOT NULL
            CONSTRAINT limit_policy_tenant_id_fkey REFERENCES tenant (id),
        requests_per_minute  bigint,
        tokens_per_minute    bigint,
        max_concurrent       integer,
        max_queued           integer,
        monthly_tokens       bigint,
        monthly_cost_micro   bigint,
        priority             smallint,
        weight               double precision,
        CONSTRAINT limit_policy_scope_kind_check CHECK (scope_kind IN ('tenant', 'project', 'key')),
        CONSTRAINT limit_policy_requests_per_minute_check
            CHECK (requests_per_minute BETWEEN 1 AND 2147483647),
        CONSTRAINT limit_policy_tokens_per_minute_check
            CHECK (tokens_per_minute BETWEEN 1 AND 2147483647),
        CONSTRAINT limit_policy_max_concurrent_check CHECK (max_concurrent >= 1),
        CONSTRAINT limit_policy_max_queued_check CHECK (max_queued >= 0),
        CONSTRAINT limit_policy_monthly_tokens_check
            CHECK (monthly_tokens BETWEEN 0 AND 1000000000000000),
        CONSTRAINT limit_policy_monthly_cost_micro_check
            CHECK (monthly_cost_micro BETWEEN 0 AND 1000000000000000),
        CONSTRAINT limit_policy_weight_check CHECK (weight > 0 AND weight < 'Infinity')
    )
    """,
    "CREATE INDEX limit_policy_tenant_id_idx ON limit_policy (tenant_id)",
    # Only columns without an index change, and pages have room: updates stay within their page.
    """
    CREATE TABLE limit_state (
        scope_id           uuid CONSTRAINT limit_state_pkey PRIMARY KEY
            CONSTRAINT limit_state_scope_id_fkey REFERENCES limit_policy (scope_id),
        tenant_id          uuid NOT NULL,
        requests_used      bigint NOT NULL DEFAULT 0,
        tokens_used        bigint NOT NULL DEFAULT 0,
        refilled_at        timestamptz NOT NULL DEFAULT '-infinity',
        num_running        integer NOT NULL DEFAULT 0,
        num_queued         integer NOT NULL DEFAULT 0,
        month              date NOT NULL DEFAULT '-infinity',
        month_tokens       bigint NOT NULL DEFAULT 0,
        month_cost_micro   bigint NOT NULL DEFAULT 0,
        CONSTRAINT limit_state_counts_check CHECK (
            requests_used >= 0 AND tokens_used >= 0 AND num_running >= 0 AND num_queued >= 0
            AND month_tokens >= 0 AND month_cost_micro >= 0
        )
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE reservation (
        request_id         uuid CONSTRAINT reservation_pkey PRIMARY KEY,
        tenant_id          uuid NOT NULL,
        key_id             uuid NOT NULL,
        -- Those it was charged to: policies may come and go meanwhile.
        scope_ids          uuid[] NOT NULL,
        state              text NOT NULL,
        model              text NOT NULL,
        owner              uuid NOT NULL,
        month              date NOT NULL,
        prompt_tokens      integer NOT NULL,
        completion_tokens  integer NOT NULL,
        generated_tokens   integer NOT NULL DEFAULT 0,
        prompt_price       bigint NOT NULL,
        completion_price   bigint NOT NULL,
        created_at         timestamptz NOT NULL,
        expires_at         timestamptz NOT NULL,
        CONSTRAINT reservation_key_id_fkey
            FOREIGN KEY (tenant_id, key_id) REFERENCES api_key (tenant_id, id),
        CONSTRAINT reservation_state_check CHECK (state IN ('queued', 'running')),
        CONSTRAINT reservation_tokens_check
            CHECK (prompt_tokens >= 0 AND completion_tokens >= 0 AND generated_tokens >= 0)
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX reservation_expires_at_idx ON reservation (expires_at)",
    "CREATE INDEX reservation_tenant_id_state_idx ON reservation (tenant_id, state, created_at)",
)

_ARITHMETIC = (
    # tenants.buckets.refilled; the inner least() keeps the product within 64 bits.
    """
    CREATE FUNCTION limit_refilled(p_used bigint, p_per_minute bigint, p_since timestamptz,
        p_now timestamptz)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE
            WHEN p_used = 0 OR p_per_minute IS NULL OR p_since = '-infinity' THEN 0
            ELSE greatest(0, p_used - p_per_minute * least(
                p_used / p_per_minute + 1,
                greatest(0, (extract(epoch FROM p_now - p_since) * 1000000)::bigint)
            ))
        END
    $$
    """,
    # tenants.buckets.charged.
    """
    CREATE FUNCTION limit_charged(p_used bigint, p_amount bigint)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT least(4000000000000000000, greatest(0, p_used + p_amount * 60000000))
    $$
    """,
    # tenants.types.Price.cost.
    """
    CREATE FUNCTION limit_cost(p_prompt bigint, p_completion bigint, p_prompt_price bigint,
        p_completion_price bigint)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT (p_prompt * p_prompt_price + p_completion * p_completion_price + 999999) / 1000000
    $$
    """,
    """
    CREATE FUNCTION limit_month(p_now timestamptz)
    RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT date_trunc('month', p_now AT TIME ZONE 'UTC')::date
    $$
    """,
    # How many tokens of completion fit into a month besides what is used; less than 1: none.
    """
    CREATE FUNCTION limit_room(p_wanted bigint, p_prompt bigint, p_tokens_left bigint,
        p_cost_left bigint, p_prompt_price bigint, p_completion_price bigint)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT least(
            p_wanted,
            p_tokens_left - p_prompt,
            CASE
                WHEN p_cost_left IS NULL THEN NULL
                WHEN greatest(0, p_cost_left)::numeric * 1000000 < p_prompt * p_prompt_price THEN 0
                WHEN p_completion_price > 0 THEN div(
                    greatest(0, p_cost_left)::numeric * 1000000 - p_prompt * p_prompt_price,
                    p_completion_price
                )
            END
        )::bigint
    $$
    """,
    # Moves scopes that are locked to now, and adds.
    """
    CREATE FUNCTION limit_add(p_scope_ids uuid[], p_now timestamptz, p_month date,
        p_requests integer, p_tokens bigint, p_cost_micro bigint, p_running integer,
        p_queued integer)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE limit_state AS s SET
            requests_used = limit_charged(limit_refilled(
                s.requests_used, p.requests_per_minute, s.refilled_at, p_now), CASE
                WHEN p.requests_per_minute IS NOT NULL THEN p_requests ELSE 0 END),
            tokens_used = limit_charged(limit_refilled(
                s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now), CASE
                WHEN p.tokens_per_minute IS NOT NULL THEN p_tokens ELSE 0 END),
            refilled_at = greatest(s.refilled_at, p_now),
            num_running = greatest(0, s.num_running + p_running),
            num_queued = greatest(0, s.num_queued + p_queued),
            month = greatest(s.month, limit_month(p_now)),
            -- What was held in a month that is over is not given back to this one.
            month_tokens = greatest(0,
                CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END
                + CASE WHEN p_tokens > 0 OR p_month = limit_month(p_now)
                    THEN p_tokens ELSE 0 END),
            month_cost_micro = greatest(0,
                CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END
                + CASE WHEN p_cost_micro > 0 OR p_month = limit_month(p_now)
                    THEN p_cost_micro ELSE 0 END)
        FROM limit_policy AS p
        WHERE s.scope_id = ANY (p_scope_ids) AND p.scope_id = s.scope_id;
    END
    $$
    """,
    # Locks the scopes, in one order for everybody; it is now when it has them.
    """
    CREATE FUNCTION limit_apply(p_scope_ids uuid[], p_now timestamptz, p_month date,
        p_requests integer, p_tokens bigint, p_cost_micro bigint, p_running integer,
        p_queued integer)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (p_scope_ids)
        ORDER BY scope_id FOR UPDATE;
        PERFORM limit_add(p_scope_ids, coalesce(p_now, clock_timestamp()), p_month, p_requests,
            p_tokens, p_cost_micro, p_running, p_queued);
    END
    $$
    """,
)

_PUT = (
    # False when the tenant has no such scope. What is used so far is refilled at the old rates.
    """
    CREATE FUNCTION limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid,
        p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer,
        p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint,
        p_priority smallint, p_weight double precision, p_now timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM (
            SELECT 'tenant' AS kind, id FROM tenant WHERE id = p_tenant_id
            UNION ALL
            SELECT 'project', id FROM project WHERE tenant_id = p_tenant_id
            UNION ALL
            SELECT 'key', id FROM api_key WHERE tenant_id = p_tenant_id
        ) AS scope
        WHERE scope.kind = p_scope_kind AND scope.id = p_scope_id;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM limit_apply(ARRAY[p_scope_id], p_now,
            limit_month(coalesce(p_now, clock_timestamp())), 0, 0, 0, 0, 0);
        INSERT INTO limit_policy (
            scope_id, scope_kind, tenant_id, requests_per_minute, tokens_per_minute,
            max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight
        )
        VALUES (
            p_scope_id, p_scope_kind, p_tenant_id, p_requests_per_minute, p_tokens_per_minute,
            p_max_concurrent, p_max_queued, p_monthly_tokens, p_monthly_cost_micro, p_priority,
            p_weight
        )
        ON CONFLICT (scope_id) DO UPDATE SET
            requests_per_minute = excluded.requests_per_minute,
            tokens_per_minute = excluded.tokens_per_minute,
            max_concurrent = excluded.max_concurrent,
            max_queued = excluded.max_queued,
            monthly_tokens = excluded.monthly_tokens,
            monthly_cost_micro = excluded.monthly_cost_micro,
            priority = excluded.priority,
            weight = excluded.weight;
        INSERT INTO limit_state (scope_id, tenant_id) VALUES (p_scope_id, p_tenant_id)
        ON CONFLICT (scope_id) DO NOTHING;
        RETURN true;
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION limit_put(uuid, text, uuid, bigint, bigint, integer, integer, bigint, bigint, "
    "smallint, double precision, timestamptz)",
    "DROP FUNCTION limit_add(uuid[], timestamptz, date, integer, bigint, bigint, integer, integer)",
    "DROP FUNCTION limit_apply(uuid[], timestamptz, date, integer, bigint, bigint, integer, "
    "integer)",
    "DROP FUNCTION limit_room(bigint, bigint, bigint, bigint, bigint, bigint)",
    "DROP FUNCTION limit_month(timestamptz)",
    "DROP FUNCTION limit_cost(bigint, bigint, bigint, bigint)",
    "DROP FUNCTION limit_charged(bigint, bigint)",
    "DROP FUNCTION limit_refilled(bigint, bigint, timestamptz, timestamptz)",
    "DROP TABLE reservation",
    "DROP TABLE limit_state",
    "DROP TABLE limit_policy",
)


def upgrade() -> None:
    for statement in (*_TABLES, *_ARITHMETIC, *_PUT):
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
