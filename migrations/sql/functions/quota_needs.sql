-- What a batch of reservations asks of each scope, in sum. The scopes are locked.
CREATE OR REPLACE FUNCTION quota_needs(p_asked quota_asked[])
RETURNS TABLE (scope_id uuid, tenant_id uuid, requests bigint, tokens bigint, cost bigint)
LANGUAGE sql STABLE
AS $$
SELECT
    s.scope_id, s.tenant_id, count(*), sum(a.prompt_tokens + a.completion_tokens)::bigint,
    sum(limit_cost(a.prompt_tokens, a.completion_tokens, a.prompt_price,
        a.completion_price))::bigint
FROM unnest(p_asked) AS a
JOIN limit_state AS s ON s.tenant_id = a.tenant_id
    AND s.scope_id IN (a.tenant_id, a.project_id, a.key_id)
GROUP BY s.scope_id, s.tenant_id
$$;
