"""Reservations and settlements of many requests in one transaction each.

What one costs alone is mostly its transaction: the round trip, and for a settlement the flush to
the disk. Settlements of a batch are summed before the limits and hourly sums are touched, so the
rows of a busy tenant change once per batch. Locks are taken in the order of the single ones: the
reservations, the ledger's rows, the scopes, each sorted by id.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0013"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE FUNCTION sluice_enter_all(p_tenant_ids uuid[])
    RETURNS void LANGUAGE sql AS $$
        SELECT set_config('sluice.tenants', array_to_string(
            ARRAY (SELECT DISTINCT id FROM unnest(p_tenant_ids) AS id), ','), true)
    $$
    """,
    # The answers in the order of the requests; no request may be there twice.
    """
    CREATE FUNCTION quota_reserve_many(
        p_request_ids uuid[], p_tenant_ids uuid[], p_project_ids uuid[], p_key_ids uuid[],
        p_models text[], p_prompt_tokens bigint[], p_completion_tokens bigint[],
        p_prompt_prices bigint[], p_completion_prices bigint[], p_owners uuid[],
        p_leases interval[], p_now timestamptz
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
    # limit_apply for many scopes, each with its own amounts; what may count for this month and
    # what may not has been decided (p_month_tokens, p_costs).
    """
    CREATE FUNCTION limit_apply_many(p_scope_ids uuid[], p_requests bigint[], p_tokens bigint[],
        p_month_tokens bigint[], p_costs bigint[], p_running bigint[], p_queued bigint[],
        p_now timestamptz)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        v_now timestamptz;
    BEGIN
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (p_scope_ids)
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        UPDATE limit_state AS s SET
            requests_used = limit_charged(limit_refilled(
                s.requests_used, p.requests_per_minute, s.refilled_at, v_now), CASE
                WHEN p.requests_per_minute IS NOT NULL THEN d.requests ELSE 0 END),
            tokens_used = limit_charged(limit_refilled(
                s.tokens_used, p.tokens_per_minute, s.refilled_at, v_now), CASE
                WHEN p.tokens_per_minute IS NOT NULL THEN d.tokens ELSE 0 END),
            refilled_at = greatest(s.refilled_at, v_now),
            num_running = greatest(0, s.num_running + d.running),
            num_queued = greatest(0, s.num_queued + d.queued),
            month = greatest(s.month, limit_month(v_now)),
            month_tokens = greatest(0, d.month_tokens
                + CASE WHEN s.month >= limit_month(v_now) THEN s.month_tokens ELSE 0 END),
            month_cost_micro = greatest(0, d.cost
                + CASE WHEN s.month >= limit_month(v_now) THEN s.month_cost_micro ELSE 0 END)
        FROM limit_policy AS p, unnest(p_scope_ids, p_requests, p_tokens, p_month_tokens, p_costs,
            p_running, p_queued)
            AS d (scope_id, requests, tokens, month_tokens, cost, running, queued)
        WHERE s.scope_id = d.scope_id AND p.scope_id = s.scope_id;
    END
    $$
    """,
    # The ids of those that are written; the others were there. No request may be there twice.
    """
    CREATE FUNCTION quota_settle_many(
        p_request_ids uuid[], p_tenant_ids uuid[], p_key_ids uuid[], p_models text[],
        p_statuses text[], p_prompt_tokens integer[], p_cached_tokens integer[],
        p_completion_tokens integer[], p_created_at timestamptz[], p_end_users text[],
        p_costs bigint[], p_now timestamptz
    ) RETURNS uuid[] LANGUAGE plpgsql AS $$
    DECLARE
        v_written uuid[];
        v_month date := limit_month(coalesce(p_now, clock_timestamp()));
        d record;
    BEGIN
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        WITH event AS (
            SELECT * FROM unnest(
                p_request_ids, p_tenant_ids, p_key_ids, p_models, p_statuses, p_prompt_tokens,
                p_cached_tokens, p_completion_tokens, p_created_at, p_end_users, p_costs
            ) AS e (
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            )
        ), seen AS (
            INSERT INTO usage_seen (request_id, tenant_id, created_at)
            SELECT request_id, tenant_id, created_at FROM event ORDER BY request_id
            ON CONFLICT (request_id) DO NOTHING
            RETURNING request_id
        ), written AS (
            SELECT event.* FROM event JOIN seen USING (request_id)
        ), ledger AS (
            INSERT INTO usage_event (
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            )
            SELECT
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            FROM written
        ), sums AS (
            INSERT INTO usage_rollup AS r (
                tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
                completion_tokens, cost_micro
            )
            SELECT
                tenant_id, key_id, model, date_trunc('hour', created_at, 'UTC'), count(*),
                sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(cost_micro)
            FROM written
            GROUP BY 1, 2, 3, 4
            ORDER BY 1, 4, 2, 3
            ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
                requests = r.requests + excluded.requests,
                prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
                cached_tokens = r.cached_tokens + excluded.cached_tokens,
                completion_tokens = r.completion_tokens + excluded.completion_tokens,
                cost_micro = r.cost_micro + excluded.cost_micro
        ), closed AS (
            DELETE FROM reservation AS r USING event AS e
            WHERE r.request_id = e.request_id AND r.tenant_id = e.tenant_id
            RETURNING r.*
        ), amount AS (
            -- What a reservation holds beyond what was used goes back, and so does its slot.
            SELECT
                c.scope_ids, c.month, 0 AS requests,
                coalesce(w.prompt_tokens::bigint + w.completion_tokens, 0) - CASE
                    WHEN c.state = 'running' THEN c.prompt_tokens + c.completion_tokens ELSE 0
                END AS tokens,
                coalesce(w.cost_micro, 0) - CASE
                    WHEN c.state = 'running' THEN limit_cost(c.prompt_tokens, c.completion_tokens,
                        c.prompt_price, c.completion_price) ELSE 0
                END AS cost,
                CASE WHEN c.state = 'running' THEN -1 ELSE 0 END AS running,
                CASE WHEN c.state = 'queued' THEN -1 ELSE 0 END AS queued
            FROM closed AS c LEFT JOIN written AS w USING (request_id)
            UNION ALL
            -- Never reserved, or the reservation was lost: used is used.
            SELECT
                ARRAY[k.id, k.project_id, k.tenant_id], v_month, 1,
                w.prompt_tokens::bigint + w.completion_tokens, w.cost_micro, 0, 0
            FROM written AS w JOIN api_key AS k ON k.id = w.key_id
            WHERE NOT EXISTS (SELECT FROM closed AS c WHERE c.request_id = w.request_id)
        ), delta AS (
            SELECT
                scope_id, sum(requests)::bigint AS requests, sum(tokens)::bigint AS tokens,
                -- What was held in a month that is over is not given back to this one.
                sum(CASE WHEN tokens > 0 OR month = v_month THEN tokens ELSE 0 END)::bigint
                    AS month_tokens,
                sum(CASE WHEN cost > 0 OR month = v_month THEN cost ELSE 0 END)::bigint AS cost,
                sum(running)::bigint AS running, sum(queued)::bigint AS queued
            FROM amount CROSS JOIN LATERAL unnest(scope_ids) AS scope_id
            GROUP BY scope_id
        )
        SELECT
            array_agg(scope_id) AS scope_ids, array_agg(requests) AS requests,
            array_agg(tokens) AS tokens, array_agg(month_tokens) AS month_tokens,
            array_agg(cost) AS costs, array_agg(running) AS running, array_agg(queued) AS queued,
            ARRAY (SELECT request_id FROM seen) AS written
        INTO d FROM delta;
        v_written := d.written;
        IF d.scope_ids IS NOT NULL THEN
            PERFORM limit_apply_many(d.scope_ids, d.requests, d.tokens, d.month_tokens, d.costs,
                d.running, d.queued, p_now);
        END IF;
        RETURN v_written;
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION quota_settle_many(uuid[], uuid[], uuid[], text[], text[], integer[], integer[], "
    "integer[], timestamptz[], text[], bigint[], timestamptz)",
    "DROP FUNCTION limit_apply_many(uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], "
    "bigint[], timestamptz)",
    "DROP FUNCTION quota_reserve_many(uuid[], uuid[], uuid[], uuid[], text[], bigint[], bigint[], "
    "bigint[], bigint[], uuid[], interval[], timestamptz)",
    "DROP FUNCTION sluice_enter_all(uuid[])",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
