-- More tokens for a completion that runs: how many were granted; null if it has no reservation.
-- Rates go into debt: a running stream is not cut off for them, the next request waits.
CREATE OR REPLACE FUNCTION quota_extend(
    p_request_id uuid, p_tenant_id uuid, p_tokens bigint, p_generated integer, p_lease interval,
    p_now timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_row reservation;
    v_now timestamptz;
    v_grant bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT * INTO v_row FROM reservation
    WHERE request_id = p_request_id AND tenant_id = p_tenant_id AND state = 'running'
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM limit_state WHERE scope_id = ANY (v_row.scope_ids)
    ORDER BY scope_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT greatest(0, least(p_tokens, min(limit_room(
        p_tokens, 0, l.month_tokens, l.month_cost_micro, 0, v_row.completion_price))))
    INTO v_grant
    FROM limit_state AS s JOIN limit_policy AS p USING (scope_id)
    CROSS JOIN LATERAL limit_left(s, p, v_now) AS l
    WHERE s.scope_id = ANY (v_row.scope_ids);
    -- The rates go into debt: a stream under way is not cut for them, the next one waits.
    PERFORM limit_add_same(v_row.scope_ids, 0, v_grant,
        limit_cost(v_row.prompt_tokens, v_row.completion_tokens + v_grant, v_row.prompt_price,
            v_row.completion_price)
        - limit_cost(v_row.prompt_tokens, v_row.completion_tokens, v_row.prompt_price,
            v_row.completion_price), 0, 0, v_now);
    UPDATE reservation SET
        completion_tokens = completion_tokens + v_grant,
        generated_tokens = greatest(generated_tokens, p_generated),
        expires_at = greatest(expires_at, v_now + p_lease)
    WHERE request_id = p_request_id;
    RETURN v_grant;
END
$$;
