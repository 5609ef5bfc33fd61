-- Writes an event for each threshold of a monthly budget that the scopes have reached and that was not
-- reported in this month. The caller holds the scopes' locks, and has charged them.
CREATE OR REPLACE FUNCTION limit_report(p_scope_ids uuid[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    s record;
    v_held record;
    v_tokens smallint;
    v_cost smallint;
BEGIN
    FOR s IN
        SELECT
            l.*, p.scope_kind, p.monthly_tokens, p.monthly_cost_micro,
            CASE WHEN l.reported_month = l.month THEN l.reported_tokens ELSE 0 END AS told_tokens,
            CASE WHEN l.reported_month = l.month THEN l.reported_cost ELSE 0 END AS told_cost
        FROM limit_state AS l JOIN limit_policy AS p USING (scope_id)
        WHERE l.scope_id = ANY (p_scope_ids) AND (
            limit_step(l.month_tokens, p.monthly_tokens)
                > CASE WHEN l.reported_month = l.month THEN l.reported_tokens ELSE 0 END
            OR limit_step(l.month_cost_micro, p.monthly_cost_micro)
                > CASE WHEN l.reported_month = l.month THEN l.reported_cost ELSE 0 END
        )
    LOOP
        -- What running requests hold counts for limits, but is not used yet.
        SELECT
            coalesce(sum(prompt_tokens::bigint + completion_tokens), 0)::bigint AS tokens,
            coalesce(sum(limit_cost(prompt_tokens, completion_tokens, prompt_price,
                completion_price)), 0)::bigint AS cost
        INTO v_held FROM reservation
        WHERE tenant_id = s.tenant_id AND state = 'running' AND s.scope_id = ANY (scope_ids);
        v_tokens := limit_step(s.month_tokens - v_held.tokens, s.monthly_tokens);
        v_cost := limit_step(s.month_cost_micro - v_held.cost, s.monthly_cost_micro);
        IF v_tokens > s.told_tokens OR v_cost > s.told_cost THEN
            PERFORM webhook_event(s.tenant_id, 'budget.threshold_reached', jsonb_build_object(
                'scope', s.scope_kind, 'scope_id', s.scope_id, 'month', to_char(s.month, 'YYYY-MM'),
                'budget', b.budget, 'threshold_percent', step, 'used', b.used, 'limit', b.most))
            FROM (VALUES
                ('tokens', s.month_tokens - v_held.tokens, s.monthly_tokens, s.told_tokens,
                    v_tokens),
                ('cost_micro', s.month_cost_micro - v_held.cost, s.monthly_cost_micro,
                    s.told_cost, v_cost)
            ) AS b (budget, used, most, told, reached),
            unnest(ARRAY[50, 80, 100]) AS step
            WHERE step > b.told AND step <= b.reached
            ORDER BY b.budget DESC, step;
            UPDATE limit_state SET
                reported_month = s.month,
                reported_tokens = greatest(v_tokens, s.told_tokens),
                reported_cost = greatest(v_cost, s.told_cost)
            WHERE scope_id = s.scope_id;
        END IF;
    END LOOP;
END
$$;
