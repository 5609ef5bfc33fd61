-- Reserves what is known to fit. The scopes are locked.
CREATE OR REPLACE FUNCTION quota_take(p_asked quota_asked[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    d record;
BEGIN
    INSERT INTO reservation (
        request_id, tenant_id, key_id, scope_ids, state, model, owner, month, prompt_tokens,
        completion_tokens, prompt_price, completion_price, created_at, expires_at,
        endpoint
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
        a.completion_tokens, a.prompt_price, a.completion_price, v_now, v_now + a.lease,
        a.endpoint
    FROM unnest(p_asked) AS a ORDER BY a.request_id;
    SELECT
        array_agg(scope_id) AS scope_ids, array_agg(requests) AS requests,
        array_agg(tokens) AS tokens, array_agg(cost) AS costs,
        array_agg(0::bigint) AS queued
    INTO d FROM quota_needs(p_asked);
    IF d.scope_ids IS NOT NULL THEN
        PERFORM limit_add(d.scope_ids, d.requests, d.tokens, d.tokens, d.costs, d.requests,
            d.queued, v_now);
    END IF;
END
$$;
