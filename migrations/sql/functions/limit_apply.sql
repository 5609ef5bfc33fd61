-- limit_add for scopes that are not locked yet: locks them in the order of their ids, as everybody
-- does.
CREATE OR REPLACE FUNCTION limit_apply(
    p_scope_ids uuid[], p_now timestamptz, p_month date, p_requests integer, p_tokens bigint,
    p_cost_micro bigint, p_running integer, p_queued integer
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM limit_state WHERE scope_id = ANY (p_scope_ids)
    ORDER BY scope_id FOR UPDATE;
    PERFORM limit_add(p_scope_ids, coalesce(p_now, clock_timestamp()), p_month, p_requests,
        p_tokens, p_cost_micro, p_running, p_queued);
END
$$;
