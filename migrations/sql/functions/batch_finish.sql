-- Keeps the results of lines, and settles what they used, in one transaction: a line is billed exactly
-- if its result is kept. Only the last owner of a line is heard, and once. A null status says that
-- nothing is to be billed. Returns which of the lines were kept, by their places.
CREATE OR REPLACE FUNCTION batch_finish(
    p_tenant_ids uuid[], p_batch_ids text[], p_numbers integer[], p_attempts integer[],
    p_results bytea[], p_failed boolean[], p_request_ids uuid[], p_key_ids uuid[], p_models text[],
    p_statuses text[], p_prompt_tokens integer[], p_cached_tokens integer[],
    p_completion_tokens integer[], p_created_at timestamptz[], p_end_users text[], p_costs bigint[],
    p_endpoints text[]
)
RETURNS integer[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_kept integer[] := '{}';
    v_billed integer[];
    i integer;
BEGIN
    PERFORM sluice_enter_all(p_tenant_ids);
    -- In one order by all callers.
    FOR i IN
        SELECT n FROM generate_subscripts(p_numbers, 1) AS n
        ORDER BY p_tenant_ids[n], p_batch_ids[n], p_numbers[n]
    LOOP
        UPDATE batch_line
        SET result = p_results[i], is_failed = p_failed[i], is_done = true, owner = NULL
        WHERE tenant_id = p_tenant_ids[i] AND batch_id = p_batch_ids[i] AND number = p_numbers[i]
            AND attempts = p_attempts[i] AND NOT is_done;
        IF FOUND THEN
            v_kept := v_kept || i;
        END IF;
    END LOOP;
    PERFORM batch_count(tenant_id, batch_id, done - failed, failed)
    FROM (
        SELECT p_tenant_ids[n] AS tenant_id, p_batch_ids[n] AS batch_id,
            count(*) FILTER (WHERE p_failed[n]) AS failed, count(*) AS done
        FROM unnest(v_kept) AS n GROUP BY 1, 2 ORDER BY 1, 2
    ) AS sums;
    v_billed := ARRAY (SELECT n FROM unnest(v_kept) AS n WHERE p_statuses[n] IS NOT NULL);
    IF cardinality(v_billed) > 0 THEN
        PERFORM quota_settle(
            array_agg(p_request_ids[n]), array_agg(p_tenant_ids[n]), array_agg(p_key_ids[n]),
            array_agg(p_models[n]), array_agg(p_statuses[n]), array_agg(p_prompt_tokens[n]),
            array_agg(p_cached_tokens[n]), array_agg(p_completion_tokens[n]),
            array_agg(p_created_at[n]), array_agg(p_end_users[n]), array_agg(p_costs[n]), NULL,
            array_agg(p_endpoints[n]))
        FROM unnest(v_billed) AS n;
    END IF;
    RETURN v_kept;
END
$$;
