-- What a scope has left at p_now; null where there is no limit, negative where a rate is in debt. This
-- is where the rules of limits stand. requests and tokens are in 60-millionths; slots: how many more
-- may run. It returns a table of one row, because PostgreSQL inlines such a function.
CREATE OR REPLACE FUNCTION limit_left(s limit_state, p limit_policy, p_now timestamptz)
RETURNS TABLE (
    requests bigint, tokens bigint, month_tokens bigint, month_cost_micro bigint, slots integer
)
LANGUAGE sql STABLE
AS $$
SELECT
    p.requests_per_minute * 60000000
        - limit_refilled(s.requests_used, p.requests_per_minute, s.refilled_at, p_now),
    p.tokens_per_minute * 60000000
        - limit_refilled(s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now),
    p.monthly_tokens
        - CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END,
    p.monthly_cost_micro
        - CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END,
    p.max_concurrent - s.num_running
$$;
