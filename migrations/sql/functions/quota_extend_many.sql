-- quota_extend for many completions: an answer each, in their order. No request may be there
-- twice.
CREATE OR REPLACE FUNCTION quota_extend_many(
    p_request_ids uuid[], p_tenant_ids uuid[], p_tokens bigint[], p_generated integer[],
    p_lease interval, p_now timestamptz
)
RETURNS SETOF bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked quota_more[];
    v_block quota_more[];
    v_lacking uuid[];
    v_granted uuid[];
    v_now timestamptz;
    d record;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM sluice_enter_all(p_tenant_ids);
    PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
    ORDER BY request_id FOR UPDATE;
    PERFORM 1 FROM limit_state
    WHERE scope_id = ANY (ARRAY (
        SELECT unnest(scope_ids) FROM reservation WHERE request_id = ANY (p_request_ids)
    ))
    ORDER BY scope_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(a::quota_more) INTO v_asked
    FROM unnest(p_request_ids, p_tenant_ids, p_tokens, p_generated)
        AS a (request_id, tenant_id, tokens, generated);
    v_lacking := ARRAY (
        SELECT n.tenant_id
        FROM quota_more_needs(v_asked) AS n
        JOIN limit_state AS s USING (scope_id) JOIN limit_policy AS p USING (scope_id)
        CROSS JOIN LATERAL limit_left(s, p, v_now) AS l
        WHERE n.tokens > l.month_tokens OR n.spent > l.month_cost_micro
    );
    v_block := ARRAY (
        SELECT a::quota_more FROM unnest(v_asked) AS a WHERE a.tenant_id <> ALL (v_lacking)
    );
    -- The rates go into debt: a stream under way is not cut for them, the next one waits.
    SELECT
        array_agg(scope_id) AS scope_ids, array_agg(tokens) AS tokens,
        array_agg(cost) AS costs, array_agg(0::bigint) AS none
    INTO d FROM quota_more_needs(v_block);
    IF d.scope_ids IS NOT NULL THEN
        PERFORM limit_add(d.scope_ids, d.none, d.tokens, d.tokens, d.costs, d.none, d.none,
            v_now);
    END IF;
    WITH granted AS (
        UPDATE reservation AS r SET
            completion_tokens = r.completion_tokens + a.tokens,
            generated_tokens = greatest(r.generated_tokens, a.generated),
            expires_at = greatest(r.expires_at, v_now + p_lease)
        FROM unnest(v_block) AS a
        WHERE r.request_id = a.request_id AND r.tenant_id = a.tenant_id
            AND r.state = 'running'
        RETURNING r.request_id
    )
    SELECT array_agg(request_id) INTO v_granted FROM granted;
    FOR i IN 1 .. cardinality(p_request_ids) LOOP
        IF p_tenant_ids[i] = ANY (v_lacking) THEN
            RETURN NEXT quota_extend(p_request_ids[i], p_tenant_ids[i], p_tokens[i],
                p_generated[i], p_lease, p_now);
        ELSIF p_request_ids[i] = ANY (v_granted) THEN
            RETURN NEXT p_tokens[i];
        ELSE
            RETURN NEXT NULL;
        END IF;
    END LOOP;
END
$$;
