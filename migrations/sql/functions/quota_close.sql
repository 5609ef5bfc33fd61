-- Gives back what a reservation holds beyond what was used, and its slot.
CREATE OR REPLACE FUNCTION quota_close(
    p_row reservation, p_tokens bigint, p_cost_micro bigint, p_now timestamptz
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_row.state = 'queued' THEN
        PERFORM limit_apply(p_row.scope_ids, p_now, p_row.month, 0, p_tokens, p_cost_micro, 0,
            -1);
    ELSE
        PERFORM limit_apply(p_row.scope_ids, p_now, p_row.month, 0,
            p_tokens - p_row.prompt_tokens - p_row.completion_tokens,
            p_cost_micro - limit_cost(p_row.prompt_tokens, p_row.completion_tokens,
                p_row.prompt_price, p_row.completion_price), -1, 0);
    END IF;
END
$$;
