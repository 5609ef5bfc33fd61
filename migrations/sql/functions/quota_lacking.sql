-- The tenants whose whole block does not fit: one of their scopes has no room for it, or requests
-- of theirs wait for a slot or are asked for again. The scopes are locked.
CREATE OR REPLACE FUNCTION quota_lacking(p_asked quota_asked[], p_now timestamptz) RETURNS uuid[]
LANGUAGE sql STABLE
AS $$
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
$$;
