"""A batch takes each tenant's quota as a block: one check and one change of a row for all of it.

The requests that wait in a worker are reserved together already; now those of a tenant whose sum
fits are decided together, too. What fits as a whole fits one by one in any order, so nothing is
admitted that would not be alone. A tenant whose block does not fit is asked request by request, so
nothing is refused that would not be alone.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_ARGUMENTS = """
        p_request_ids uuid[], p_tenant_ids uuid[], p_project_ids uuid[], p_key_ids uuid[],
        p_models text[], p_prompt_tokens bigint[], p_completion_tokens bigint[],
        p_prompt_prices bigint[], p_completion_prices bigint[], p_owners uuid[],
        p_leases interval[], p_now timestamptz
"""

_UP = (
    """
    CREATE TYPE quota_asked AS (
        request_id uuid, tenant_id uuid, project_id uuid, key_id uuid, model text,
        prompt_tokens bigint, completion_tokens bigint, prompt_price bigint,
        completion_price bigint, owner uuid, lease interval
    )
    """,
    # What a batch asks of each scope, in sum. The scopes are locked.
    """
    CREATE FUNCTION quota_needs(p_asked quota_asked[])
    RETURNS TABLE (scope_id uuid, tenant_id uuid, requests bigint, tokens bigint, cost bigint)
    LANGUAGE sql STABLE AS $$
        SELECT
            s.scope_id, s.tenant_id, count(*), sum(a.prompt_tokens + a.completion_tokens)::bigint,
            sum(limit_cost(a.prompt_tokens, a.completion_tokens, a.prompt_price,
                a.completion_price))::bigint
        FROM unnest(p_asked) AS a
        JOIN limit_state AS s ON s.tenant_id = a.tenant_id
            AND s.scope_id IN (a.tenant_id, a.project_id, a.key_id)
        GROUP BY s.scope_id, s.tenant_id
    $$
    """,
    # The tenants whose whole block does not fit: one of their scopes has no room for it, or
    # requests of theirs wait for a slot, or are asked for again.
    """
    CREATE FUNCTION quota_lacking(p_asked quota_asked[], p_now timestamptz)
    RETURNS uuid[] LANGUAGE sql STABLE AS $$
        SELECT ARRAY (
            SELECT n.tenant_id
            FROM quota_needs(p_asked) AS n
            JOIN limit_state AS s USING (scope_id) JOIN limit_policy AS p USING (scope_id)
            WHERE limit_refilled(s.requests_used, p.requests_per_minute, s.refilled_at, p_now)
                    + n.requests * 60000000::numeric > p.requests_per_minute * 60000000
                OR limit_refilled(s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now)
                    + n.tokens * 60000000::numeric > p.tokens_per_minute * 60000000
                OR n.tokens > p.monthly_tokens
                    - CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END
                OR n.cost > p.monthly_cost_micro
                    - CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END
                OR s.num_running + n.requests > p.max_concurrent
                OR s.num_queued > 0
            UNION
            SELECT r.tenant_id FROM unnest(p_asked) AS a JOIN reservation AS r USING (request_id)
        )
    $$
    """,
    # Reserves what is known to fit.
    """
    CREATE FUNCTION quota_take(p_asked quota_asked[], p_now timestamptz)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        v_now timestamptz := coalesce(p_now, clock_timestamp());
        d record;
    BEGIN
        INSERT INTO reservation (
            request_id, tenant_id, key_id, scope_ids, state, model, owner, month, prompt_tokens,
            completion_tokens, prompt_price, completion_price, created_at, expires_at
        )
        SELECT
            a.request_id, a.tenant_id, a.key_id,
            ARRAY (
                SELECT s.scope_id FROM limit_state AS s
                WHERE s.tenant_id = a.tenant_id
                    AND s.scope_id IN (a.tenant_id, a.project_id, a.key_id)
                ORDER BY s.scope_id
            ),
            'running', a.model, a.owner, limit_month(v_now), a.prompt_tokens,
            a.completion_tokens, a.prompt_price, a.completion_price, v_now, v_now + a.lease
        FROM unnest(p_asked) AS a ORDER BY a.request_id;
        SELECT
            array_agg(scope_id) AS scope_ids, array_agg(requests) AS requests,
            array_agg(tokens) AS tokens, array_agg(cost) AS costs,
            array_agg(0::bigint) AS queued
        INTO d FROM quota_needs(p_asked);
        IF d.scope_ids IS NOT NULL THEN
            PERFORM limit_apply_many(d.scope_ids, d.requests, d.tokens, d.tokens, d.costs,
                d.requests, d.queued, p_now);
        END IF;
    END
    $$
    """,
    # The answers in the order of the requests; no request may be there twice. The windows of a
    # block are those after all of it.
    f"""
    CREATE OR REPLACE FUNCTION quota_reserve_many({_ARGUMENTS}
    ) RETURNS SETOF quota_answer LANGUAGE plpgsql AS $$
    DECLARE
        v_asked quota_asked[];
        v_block quota_asked[];
        v_lacking uuid[];
        v_taken jsonb;
        v_answer quota_answer;
        v_now timestamptz;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        PERFORM 1 FROM limit_state
        WHERE scope_id = ANY (p_tenant_ids || p_project_ids || p_key_ids)
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        SELECT array_agg(a::quota_asked ORDER BY a.request_id) INTO v_asked
        FROM unnest(p_request_ids, p_tenant_ids, p_project_ids, p_key_ids, p_models,
            p_prompt_tokens, p_completion_tokens, p_prompt_prices, p_completion_prices, p_owners,
            p_leases) AS a (request_id, tenant_id, project_id, key_id, model, prompt_tokens,
            completion_tokens, prompt_price, completion_price, owner, lease);
        v_lacking := quota_lacking(v_asked, v_now);
        v_block := ARRAY (
            SELECT a::quota_asked FROM unnest(v_asked) AS a WHERE a.tenant_id <> ALL (v_lacking)
        );
        PERFORM quota_take(v_block, p_now);
        -- By request; the windows of each set of scopes are looked at once.
        WITH taken AS (
            SELECT r.request_id, r.scope_ids
            FROM unnest(v_block) AS a JOIN reservation AS r USING (request_id)
        ), answer AS MATERIALIZED (
            SELECT scope_ids, to_jsonb(quota_windows(ROW ('running', 0, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::quota_answer, scope_ids, v_now)) AS answer
            FROM (SELECT DISTINCT scope_ids FROM taken) AS sets
        )
        SELECT jsonb_object_agg(request_id, answer) INTO v_taken
        FROM taken JOIN answer USING (scope_ids);
        FOR i IN 1 .. cardinality(p_request_ids) LOOP
            IF p_tenant_ids[i] = ANY (v_lacking) THEN
                RETURN NEXT quota_reserve(
                    p_request_ids[i], p_tenant_ids[i], p_project_ids[i], p_key_ids[i], p_models[i],
                    p_prompt_tokens[i], p_completion_tokens[i], p_prompt_prices[i],
                    p_completion_prices[i], p_owners[i], p_leases[i], p_now);
            ELSE
                v_answer := jsonb_populate_record(NULL::quota_answer,
                    v_taken -> p_request_ids[i]::text);
                v_answer.completion_tokens := p_completion_tokens[i];
                RETURN NEXT v_answer;
            END IF;
        END LOOP;
    END
    $$
    """,
)

_DOWN = (
    f"""
    CREATE OR REPLACE FUNCTION quota_reserve_many({_ARGUMENTS}
    ) RETURNS SETOF quota_answer LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        PERFORM 1 FROM limit_state
        WHERE scope_id = ANY (p_tenant_ids || p_project_ids || p_key_ids)
        ORDER BY scope_id FOR UPDATE;
        FOR i IN 1 .. cardinality(p_request_ids) LOOP
            RETURN NEXT quota_reserve(
                p_request_ids[i], p_tenant_ids[i], p_project_ids[i], p_key_ids[i], p_models[i],
                p_prompt_tokens[i], p_completion_tokens[i], p_prompt_prices[i],
                p_completion_prices[i], p_owners[i], p_leases[i], p_now);
        END LOOP;
    END
    $$
    """,
    "DROP FUNCTION quota_take(quota_asked[], timestamptz)",
    "DROP FUNCTION quota_lacking(quota_asked[], timestamptz)",
    "DROP FUNCTION quota_needs(quota_asked[])",
    "DROP TYPE quota_asked",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
