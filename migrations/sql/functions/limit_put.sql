-- Sets the limits of a scope; null means no limit. False if the tenant has no such scope. What is
-- used so far is refilled at the old rates first.
CREATE OR REPLACE FUNCTION limit_put(
    p_tenant_id uuid, p_scope_kind text, p_scope_id uuid, p_requests_per_minute bigint,
    p_tokens_per_minute bigint, p_max_concurrent integer, p_max_queued integer,
    p_monthly_tokens bigint, p_monthly_cost_micro bigint, p_priority smallint,
    p_weight double precision, p_max_cached_blocks integer, p_now timestamptz
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM (
        SELECT 'tenant' AS kind, id FROM tenant WHERE id = p_tenant_id
        UNION ALL
        SELECT 'project', id FROM project WHERE tenant_id = p_tenant_id
        UNION ALL
        SELECT 'key', id FROM api_key WHERE tenant_id = p_tenant_id
    ) AS scope
    WHERE scope.kind = p_scope_kind AND scope.id = p_scope_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM limit_state WHERE scope_id = p_scope_id FOR UPDATE;
    PERFORM limit_add_same(ARRAY[p_scope_id], 0, 0, 0, 0, 0, coalesce(p_now, clock_timestamp()));
    INSERT INTO limit_policy (
        scope_id, scope_kind, tenant_id, requests_per_minute, tokens_per_minute,
        max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight,
        max_cached_blocks
    )
    VALUES (
        p_scope_id, p_scope_kind, p_tenant_id, p_requests_per_minute, p_tokens_per_minute,
        p_max_concurrent, p_max_queued, p_monthly_tokens, p_monthly_cost_micro, p_priority,
        p_weight, p_max_cached_blocks
    )
    ON CONFLICT (scope_id) DO UPDATE SET
        requests_per_minute = excluded.requests_per_minute,
        tokens_per_minute = excluded.tokens_per_minute,
        max_concurrent = excluded.max_concurrent,
        max_queued = excluded.max_queued,
        monthly_tokens = excluded.monthly_tokens,
        monthly_cost_micro = excluded.monthly_cost_micro,
        priority = excluded.priority,
        weight = excluded.weight,
        max_cached_blocks = excluded.max_cached_blocks;
    INSERT INTO limit_state (scope_id, tenant_id) VALUES (p_scope_id, p_tenant_id)
    ON CONFLICT (scope_id) DO NOTHING;
    RETURN true;
END
$$;
