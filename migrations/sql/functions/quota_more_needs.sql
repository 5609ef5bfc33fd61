-- What a batch of extensions asks of each scope, in sum. Requests without a reservation ask
-- nothing.
CREATE OR REPLACE FUNCTION quota_more_needs(p_asked quota_more[])
RETURNS TABLE (scope_id uuid, tenant_id uuid, tokens bigint, cost bigint, spent numeric)
LANGUAGE sql STABLE
AS $$
SELECT
    s.scope_id, r.tenant_id, sum(a.tokens)::bigint,
    sum(limit_cost(r.prompt_tokens, r.completion_tokens + a.tokens, r.prompt_price,
        r.completion_price)
    - limit_cost(r.prompt_tokens, r.completion_tokens, r.prompt_price,
        r.completion_price))::bigint,
    -- Alone, a request is granted tokens for whole prices; what it is then charged is
    -- rounded, by less than 1.
    sum(a.tokens * r.completion_price::numeric / 1000000 + 1)
FROM unnest(p_asked) AS a
JOIN reservation AS r ON r.request_id = a.request_id AND r.tenant_id = a.tenant_id
    AND r.state = 'running'
CROSS JOIN LATERAL unnest(r.scope_ids) AS s (scope_id)
GROUP BY s.scope_id, r.tenant_id
$$;
