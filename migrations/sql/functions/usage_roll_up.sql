-- Moves up to p_rows rows of usage_delta into the sums by hour and by day; returns how many. Whoever
-- reads both in one statement sees each row once, before and after. One caller at a time does the
-- work; for the others there is nothing to do.
CREATE OR REPLACE FUNCTION usage_roll_up(p_rows integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_moved integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('sluice usage_roll_up')) THEN
        RETURN 0;
    END IF;
    WITH moved AS (
        DELETE FROM usage_delta
        WHERE ctid = ANY (ARRAY (SELECT ctid FROM usage_delta LIMIT p_rows))
        RETURNING *
    ), by_hour AS (
        SELECT
            tenant_id, key_id, model, hour, sum(requests) AS requests,
            sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
            sum(completion_tokens) AS completion_tokens, sum(cost_micro) AS cost_micro
        FROM moved GROUP BY tenant_id, key_id, model, hour
    ), by_day AS (
        SELECT
            tenant_id, key_id, model, (hour AT TIME ZONE 'UTC')::date AS day,
            sum(requests) AS requests,
            sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
            sum(completion_tokens) AS completion_tokens, sum(cost_micro) AS cost_micro
        FROM by_hour GROUP BY 1, 2, 3, 4
    ), hours AS (
        INSERT INTO usage_rollup AS r (
            tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
            completion_tokens, cost_micro
        )
        SELECT * FROM by_hour ORDER BY hour
        ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
            requests = r.requests + excluded.requests,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_micro = r.cost_micro + excluded.cost_micro
    ), days AS (
        INSERT INTO usage_daily AS r (
            tenant_id, key_id, model, day, requests, prompt_tokens, cached_tokens,
            completion_tokens, cost_micro
        )
        SELECT * FROM by_day ORDER BY day
        ON CONFLICT (tenant_id, day, key_id, model) DO UPDATE SET
            requests = r.requests + excluded.requests,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_micro = r.cost_micro + excluded.cost_micro
    ), days_of_tenants AS (
        INSERT INTO usage_daily_tenant AS r (
            tenant_id, model, day, requests, prompt_tokens, cached_tokens, completion_tokens,
            cost_micro
        )
        SELECT
            tenant_id, model, day, sum(requests), sum(prompt_tokens), sum(cached_tokens),
            sum(completion_tokens), sum(cost_micro)
        FROM by_day GROUP BY tenant_id, model, day ORDER BY day
        ON CONFLICT (tenant_id, day, model) DO UPDATE SET
            requests = r.requests + excluded.requests,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_micro = r.cost_micro + excluded.cost_micro
    )
    SELECT count(*) INTO v_moved FROM moved;
    RETURN v_moved;
END
$$;
