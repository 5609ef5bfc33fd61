-- The tenants whose whole block does not fit: one of their scopes has no room for it, or requests
-- of theirs wait for a slot or are asked for again. The scopes are locked.
CREATE OR REPLACE FUNCTION quota_lacking(p_asked quota_asked[], p_now timestamptz) RETURNS uuid[]
LANGUAGE sql STABLE
AS $$
SELECT ARRAY (
    SELECT n.tenant_id
    FROM quota_needs(p_asked) AS n
    JOIN limit_state AS s USING (scope_id) JOIN limit_policy AS p USING (scope_id)
    CROSS JOIN LATERAL limit_left(s, p, p_now) AS l
    WHERE n.requests * 60000000::numeric > l.requests
        OR n.tokens * 60000000::numeric > l.tokens
        OR n.tokens > l.month_tokens
        OR n.cost > l.month_cost_micro
        OR n.requests > l.slots
        OR s.num_queued > 0
    UNION
    SELECT r.tenant_id FROM unnest(p_asked) AS a JOIN reservation AS r USING (request_id)
)
$$;
