-- limit_add with the same amounts for all scopes, which all count for this month.
CREATE OR REPLACE FUNCTION limit_add_same(
    p_scope_ids uuid[], p_requests bigint, p_tokens bigint, p_cost_micro bigint, p_running bigint,
    p_queued bigint, p_now timestamptz
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    n integer[] := ARRAY[cardinality(p_scope_ids)];
BEGIN
    PERFORM limit_add(p_scope_ids, array_fill(p_requests, n), array_fill(p_tokens, n),
        array_fill(p_tokens, n), array_fill(p_cost_micro, n), array_fill(p_running, n),
        array_fill(p_queued, n), p_now);
END
$$;
