-- Refills the rates of scopes up to p_now, and adds to what is used of them. The caller holds the
-- scopes' locks. p_month: the month in which the amounts were reserved; what was held in a month
-- that is over is not given back to the present one.
CREATE OR REPLACE FUNCTION limit_add(
    p_scope_ids uuid[], p_now timestamptz, p_month date, p_requests integer, p_tokens bigint,
    p_cost_micro bigint, p_running integer, p_queued integer
)
RETURNS void
LANGUAGE plpgsql
AS $$
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
$$;
