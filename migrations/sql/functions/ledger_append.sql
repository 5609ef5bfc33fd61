-- Writes a request into the ledger and its hourly sums. False if it was there.
CREATE OR REPLACE FUNCTION ledger_append(
    p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text,
    p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer,
    p_created_at timestamptz, p_end_user text, p_cost_micro bigint
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO usage_seen (request_id, tenant_id, created_at)
    VALUES (p_request_id, p_tenant_id, p_created_at)
    ON CONFLICT (request_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO usage_event (
        request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
        completion_tokens, created_at, end_user, cost_micro
    )
    VALUES (
        p_request_id, p_tenant_id, p_key_id, p_model, p_status, p_prompt_tokens,
        p_cached_tokens, p_completion_tokens, p_created_at, p_end_user, p_cost_micro
    );
    INSERT INTO usage_rollup AS r (
        tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
        completion_tokens, cost_micro
    )
    VALUES (
        p_tenant_id, p_key_id, p_model, date_trunc('hour', p_created_at, 'UTC'), 1,
        p_prompt_tokens, p_cached_tokens, p_completion_tokens, p_cost_micro
    )
    ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
        requests = r.requests + 1,
        prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = r.cached_tokens + excluded.cached_tokens,
        completion_tokens = r.completion_tokens + excluded.completion_tokens,
        cost_micro = r.cost_micro + excluded.cost_micro;
    RETURN true;
END
$$;
