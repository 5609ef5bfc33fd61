-- The end of a request: its ledger row, sums, limits and reservation. False if it was settled
-- before.
CREATE OR REPLACE FUNCTION quota_settle(
    p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text,
    p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer,
    p_created_at timestamptz, p_end_user text, p_cost_micro bigint, p_now timestamptz
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_row reservation;
    v_written boolean;
BEGIN
    DELETE FROM reservation WHERE request_id = p_request_id AND tenant_id = p_tenant_id
    RETURNING * INTO v_row;
    v_written := ledger_append(p_request_id, p_tenant_id, p_key_id, p_model, p_status,
        p_prompt_tokens, p_cached_tokens, p_completion_tokens, p_created_at, p_end_user,
        p_cost_micro);
    IF v_row.request_id IS NOT NULL THEN
        PERFORM quota_close(v_row,
            CASE WHEN v_written THEN p_prompt_tokens::bigint + p_completion_tokens ELSE 0 END,
            CASE WHEN v_written THEN p_cost_micro ELSE 0 END, p_now);
    ELSIF v_written THEN
        -- Never reserved, or the reservation was lost: used is used.
        PERFORM limit_apply(
            ARRAY (SELECT unnest(ARRAY[id, project_id, tenant_id]) FROM api_key
                WHERE id = p_key_id),
            p_now, limit_month(coalesce(p_now, clock_timestamp())), 1,
            p_prompt_tokens::bigint + p_completion_tokens, p_cost_micro, 0, 0);
    END IF;
    RETURN v_written;
END
$$;
