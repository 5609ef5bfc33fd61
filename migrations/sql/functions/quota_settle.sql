-- Ends requests: writes their ledger rows and sums, closes their reservations, charges the limits for
-- what was used in place of what was held, and reports budgets that are used up to a threshold.
-- Returns the ids of those that were written; the others had been settled before. No request may be
-- there twice.
CREATE OR REPLACE FUNCTION quota_settle(
    p_request_ids uuid[], p_tenant_ids uuid[], p_key_ids uuid[], p_models text[], p_statuses text[],
    p_prompt_tokens integer[], p_cached_tokens integer[], p_completion_tokens integer[],
    p_created_at timestamptz[], p_end_users text[], p_costs bigint[], p_now timestamptz,
    p_endpoints text[] DEFAULT NULL
)
RETURNS uuid[]
LANGUAGE plpgsql
AS $$
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
            p_cached_tokens, p_completion_tokens, p_created_at, p_end_users, p_costs, p_endpoints
        ) AS e (
            request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
            completion_tokens, created_at, end_user, cost_micro, endpoint
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
            completion_tokens, created_at, end_user, cost_micro, endpoint
        )
        SELECT
            request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
            completion_tokens, created_at, end_user, cost_micro, endpoint
        FROM written
    ), sums AS (
        -- Added without looking at what is there, so that nobody waits; usage_roll_up moves them.
        INSERT INTO usage_delta (
            tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
            completion_tokens, cost_micro
        )
        SELECT
            tenant_id, key_id, model, date_trunc('hour', created_at, 'UTC'), count(*),
            sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(cost_micro)
        FROM written
        GROUP BY 1, 2, 3, 4
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
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (d.scope_ids)
        ORDER BY scope_id FOR UPDATE;
        PERFORM limit_add(d.scope_ids, d.requests, d.tokens, d.month_tokens, d.costs, d.running,
            d.queued, coalesce(p_now, clock_timestamp()));
        PERFORM limit_report(d.scope_ids);
    END IF;
    RETURN v_written;
END
$$;
