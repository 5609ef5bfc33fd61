-- Undoes a reservation that came to nothing; it leaves no row in the ledger. False if there is
-- none.
CREATE OR REPLACE FUNCTION quota_release(p_request_id uuid, p_tenant_id uuid, p_now timestamptz)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    r reservation;
    v_now timestamptz;
    v_tokens bigint;
    v_cost bigint;
    v_running bigint;
    v_month bigint;
    n integer[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM reservation WHERE request_id = p_request_id AND tenant_id = p_tenant_id
    RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM limit_state WHERE scope_id = ANY (r.scope_ids) ORDER BY scope_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    n := ARRAY[cardinality(r.scope_ids)];
    v_running := (r.state = 'running')::integer;
    v_tokens := -v_running * (r.prompt_tokens + r.completion_tokens);
    v_cost := -v_running
        * limit_cost(r.prompt_tokens, r.completion_tokens, r.prompt_price, r.completion_price);
    -- What was held in a month that is over is not given back to this one.
    v_month := (r.month = limit_month(v_now))::integer;
    PERFORM limit_add(r.scope_ids, array_fill(0::bigint, n), array_fill(v_tokens, n),
        array_fill(v_tokens * v_month, n), array_fill(v_cost * v_month, n),
        array_fill(-v_running, n), array_fill(v_running - 1, n), v_now);
    RETURN true;
END
$$;
