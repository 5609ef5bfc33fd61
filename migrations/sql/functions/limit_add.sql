-- Refills the rates of scopes up to p_now, and adds to what is used of each. The caller holds the
-- scopes' locks, and has decided what counts for this month (p_month_tokens, p_costs).
CREATE OR REPLACE FUNCTION limit_add(
    p_scope_ids uuid[], p_requests bigint[], p_tokens bigint[], p_month_tokens bigint[],
    p_costs bigint[], p_running bigint[], p_queued bigint[], p_now timestamptz
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE limit_state AS s SET
        requests_used = limit_charged(limit_refilled(
            s.requests_used, p.requests_per_minute, s.refilled_at, p_now), CASE
            WHEN p.requests_per_minute IS NOT NULL THEN d.requests ELSE 0 END),
        tokens_used = limit_charged(limit_refilled(
            s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now), CASE
            WHEN p.tokens_per_minute IS NOT NULL THEN d.tokens ELSE 0 END),
        refilled_at = greatest(s.refilled_at, p_now),
        num_running = greatest(0, s.num_running + d.running),
        num_queued = greatest(0, s.num_queued + d.queued),
        month = greatest(s.month, limit_month(p_now)),
        month_tokens = greatest(0, d.month_tokens
            + CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END),
        month_cost_micro = greatest(0, d.cost
            + CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END)
    FROM limit_policy AS p, unnest(p_scope_ids, p_requests, p_tokens, p_month_tokens, p_costs,
        p_running, p_queued)
        AS d (scope_id, requests, tokens, month_tokens, cost, running, queued)
    WHERE s.scope_id = d.scope_id AND p.scope_id = s.scope_id;
END
$$;
