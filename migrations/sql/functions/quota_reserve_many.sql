-- quota_reserve for many requests: an answer each, in their order. No request may be there twice.
-- The windows of a block are those after all of it.
CREATE OR REPLACE FUNCTION quota_reserve_many(
    p_request_ids uuid[], p_tenant_ids uuid[], p_project_ids uuid[], p_key_ids uuid[],
    p_models text[], p_prompt_tokens bigint[], p_completion_tokens bigint[],
    p_prompt_prices bigint[], p_completion_prices bigint[], p_owners uuid[], p_leases interval[],
    p_now timestamptz, p_endpoints text[] DEFAULT NULL
)
RETURNS SETOF quota_answer
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked quota_asked[];
    v_block quota_asked[];
    v_lacking uuid[];
    v_taken jsonb;
    v_answer quota_answer;
    v_now timestamptz;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM sluice_enter_all(p_tenant_ids);
    PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
    ORDER BY request_id FOR UPDATE;
    PERFORM 1 FROM limit_state
    WHERE scope_id = ANY (p_tenant_ids || p_project_ids || p_key_ids)
    ORDER BY scope_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(a::quota_asked ORDER BY a.request_id) INTO v_asked
    FROM unnest(p_request_ids, p_tenant_ids, p_project_ids, p_key_ids, p_models,
        p_prompt_tokens, p_completion_tokens, p_prompt_prices, p_completion_prices, p_owners,
        p_leases, p_endpoints) AS a (request_id, tenant_id, project_id, key_id, model, prompt_tokens,
        completion_tokens, prompt_price, completion_price, owner, lease, endpoint);
    v_lacking := quota_lacking(v_asked, v_now);
    v_block := ARRAY (
        SELECT a::quota_asked FROM unnest(v_asked) AS a WHERE a.tenant_id <> ALL (v_lacking)
    );
    PERFORM quota_take(v_block, p_now);
    -- By request; the windows of each set of scopes are looked at once.
    WITH taken AS (
        SELECT r.request_id, r.scope_ids
        FROM unnest(v_block) AS a JOIN reservation AS r USING (request_id)
    ), answer AS MATERIALIZED (
        SELECT scope_ids, to_jsonb(quota_windows(ROW ('running', 0, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL)::quota_answer, scope_ids, v_now)) AS answer
        FROM (SELECT DISTINCT scope_ids FROM taken) AS sets
    )
    SELECT jsonb_object_agg(request_id, answer) INTO v_taken
    FROM taken JOIN answer USING (scope_ids);
    FOR i IN 1 .. cardinality(p_request_ids) LOOP
        IF p_tenant_ids[i] = ANY (v_lacking) THEN
            RETURN NEXT quota_reserve(
                p_request_ids[i], p_tenant_ids[i], p_project_ids[i], p_key_ids[i], p_models[i],
                p_prompt_tokens[i], p_completion_tokens[i], p_prompt_prices[i],
                p_completion_prices[i], p_owners[i], p_leases[i], p_now, p_endpoints[i]);
        ELSE
            v_answer := jsonb_populate_record(NULL::quota_answer,
                v_taken -> p_request_ids[i]::text);
            v_answer.completion_tokens := p_completion_tokens[i];
            RETURN NEXT v_answer;
        END IF;
    END LOOP;
END
$$;
