-- Sums of usage for p_start <= hour < p_end, of one tenant or, if p_tenant_id is null, of all that
-- the caller may see and whose name contains p_search. Columns that p_groups does not name are null;
-- p_bucket (hour, day or total) says what a row's start is. All comes from one snapshot: sums by
-- day, where these serve, hours where p_start or p_end cut a day, and what usage_delta has. Rows are
-- ordered by all their columns before the sums; p_after_* are those of the last row that the caller
-- has already. If p_by_tokens, those with the most tokens come first.
CREATE OR REPLACE FUNCTION usage_sums(
    p_tenant_id uuid, p_start timestamptz, p_end timestamptz, p_groups text[], p_bucket text,
    p_search text, p_after_start timestamptz, p_after_tenant_id uuid, p_after_project_id uuid,
    p_after_key_id uuid, p_after_model text, p_is_first boolean, p_by_tokens boolean, p_limit bigint
)
RETURNS TABLE (
    start timestamptz, tenant_id uuid, project_id uuid, key_id uuid, model text, requests bigint,
    prompt_tokens bigint, cached_tokens bigint, completion_tokens bigint, cost_micro bigint
)
LANGUAGE plpgsql STABLE
-- The plan depends on which tables serve, so it is made for the values.
SET plan_cache_mode = 'force_custom_plan'
SET work_mem = '64MB'
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_nil CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    v_by_tenant boolean := 'tenant' = ANY (p_groups);
    v_by_project boolean := 'project' = ANY (p_groups);
    v_by_key boolean := 'key' = ANY (p_groups);
    v_by_model boolean := 'model' = ANY (p_groups);
    v_is_fine boolean := v_by_project OR v_by_key;  -- The sums by tenant do not suffice.
    v_tenants uuid[] := CASE WHEN p_search IS NOT NULL THEN ARRAY (
        SELECT t.id FROM tenant AS t WHERE strpos(lower(t.name), lower(p_search)) > 0) END;
    v_start timestamptz := greatest(p_start, p_after_start);
    v_day_start timestamptz := date_trunc('day', v_start, 'UTC');
    v_day_end timestamptz := date_trunc('day', p_end, 'UTC');
    v_from date;  -- The days from here
    v_to date;    -- to before this one are taken as a whole.
    -- Hours that are added to the days, and hours that are taken off again: of a day that is cut,
    -- the shorter part. After now there are hardly any.
    v_more tstzrange[] := '{}';
    v_less tstzrange[] := '{}';
BEGIN
    IF p_bucket = 'hour' THEN
        v_more := ARRAY[tstzrange(v_start, p_end)];
    ELSE
        IF v_start > v_day_start + interval '12 hours' THEN
            v_more := v_more || tstzrange(v_start, v_day_start + interval '1 day');
            v_day_start := v_day_start + interval '1 day';
        ELSIF v_start > v_day_start THEN
            v_less := v_less || tstzrange(v_day_start, v_start);
        END IF;
        IF p_end > v_day_end AND p_end > least(v_day_end + interval '12 hours', now()) THEN
            v_day_end := v_day_end + interval '1 day';
            v_less := v_less || tstzrange(p_end, v_day_end);
        ELSIF p_end > v_day_end THEN
            v_more := v_more || tstzrange(v_day_end, p_end);
        END IF;
        v_from := (v_day_start AT TIME ZONE 'UTC')::date;
        v_to := (v_day_end AT TIME ZONE 'UTC')::date;
    END IF;
    RETURN QUERY
    WITH by_day AS (
        -- Added up here already, because there are hundreds of thousands of rows.
        SELECT
            CASE WHEN p_bucket = 'day' THEN d.day END AS day,
            CASE WHEN v_by_tenant THEN d.tenant_id END AS tenant_id, d.key_id,
            CASE WHEN v_by_model THEN d.model END AS model, usage_sum(d.requests) AS requests,
            usage_sum(d.prompt_tokens) AS prompt_tokens,
            usage_sum(d.cached_tokens) AS cached_tokens,
            usage_sum(d.completion_tokens) AS completion_tokens,
            usage_sum(d.cost_micro) AS cost_micro
        FROM usage_daily AS d
        WHERE v_is_fine AND d.day >= v_from AND d.day < v_to
            AND (p_tenant_id IS NULL OR d.tenant_id = p_tenant_id)
            AND (v_tenants IS NULL OR d.tenant_id = ANY (v_tenants))
        GROUP BY 1, 2, 3, 4
        UNION ALL
        SELECT
            CASE WHEN p_bucket = 'day' THEN d.day END,
            CASE WHEN v_by_tenant THEN d.tenant_id END, NULL,
            CASE WHEN v_by_model THEN d.model END, usage_sum(d.requests),
            usage_sum(d.prompt_tokens), usage_sum(d.cached_tokens),
            usage_sum(d.completion_tokens), usage_sum(d.cost_micro)
        FROM usage_daily_tenant AS d
        WHERE NOT v_is_fine AND d.day >= v_from AND d.day < v_to
            AND (p_tenant_id IS NULL OR d.tenant_id = p_tenant_id)
            AND (v_tenants IS NULL OR d.tenant_id = ANY (v_tenants))
        GROUP BY 1, 2, 4
    ), part AS (
        SELECT
            d.day::timestamp AT TIME ZONE 'UTC' AS at, d.tenant_id, d.key_id, d.model, d.requests,
            d.prompt_tokens, d.cached_tokens, d.completion_tokens, d.cost_micro
        FROM by_day AS d
        UNION ALL
        SELECT
            u.hour, u.tenant_id, u.key_id, u.model, e.sign * u.requests, e.sign * u.prompt_tokens,
            e.sign * u.cached_tokens, e.sign * u.completion_tokens, e.sign * u.cost_micro
        FROM (
            SELECT lower(r) AS since, upper(r) AS until, 1 AS sign FROM unnest(v_more) AS r
            UNION ALL
            SELECT lower(r), upper(r), -1 FROM unnest(v_less) AS r
        ) AS e
        JOIN usage_rollup AS u ON u.hour >= e.since AND u.hour < e.until
        WHERE (p_tenant_id IS NULL OR u.tenant_id = p_tenant_id)
            AND (v_tenants IS NULL OR u.tenant_id = ANY (v_tenants))
        UNION ALL
        SELECT
            n.hour, n.tenant_id, n.key_id, n.model, n.requests, n.prompt_tokens, n.cached_tokens,
            n.completion_tokens, n.cost_micro
        FROM usage_delta AS n
        WHERE n.hour >= v_start AND n.hour < p_end
            AND (p_tenant_id IS NULL OR n.tenant_id = p_tenant_id)
            AND (v_tenants IS NULL OR n.tenant_id = ANY (v_tenants))
    ), summed AS (
        SELECT
            CASE WHEN p_bucket <> 'total' THEN date_trunc(p_bucket, p.at, 'UTC') END AS start,
            CASE WHEN v_by_tenant THEN p.tenant_id END AS tenant_id,
            CASE WHEN v_by_project THEN k.project_id END AS project_id,
            CASE WHEN v_by_key THEN p.key_id END AS key_id,
            CASE WHEN v_by_model THEN p.model END COLLATE "C" AS model,
            usage_sum(p.requests) AS requests, usage_sum(p.prompt_tokens) AS prompt_tokens,
            usage_sum(p.cached_tokens) AS cached_tokens,
            usage_sum(p.completion_tokens) AS completion_tokens,
            usage_sum(p.cost_micro) AS cost_micro
        FROM part AS p LEFT JOIN api_key AS k ON v_by_project AND k.id = p.key_id
        GROUP BY 1, 2, 3, 4, 5
        HAVING usage_sum(p.requests) <> 0
    )
    SELECT s.* FROM summed AS s
    WHERE p_is_first OR (
        coalesce(s.start, '-infinity'), coalesce(s.tenant_id, v_nil),
        coalesce(s.project_id, v_nil), coalesce(s.key_id, v_nil), coalesce(s.model, '')
    ) > (
        coalesce(p_after_start, '-infinity'), coalesce(p_after_tenant_id, v_nil),
        coalesce(p_after_project_id, v_nil), coalesce(p_after_key_id, v_nil),
        coalesce(p_after_model, '')
    )
    ORDER BY
        CASE WHEN p_by_tokens THEN -(s.prompt_tokens + s.completion_tokens) END, 1, 2, 3, 4, 5
    LIMIT p_limit;
END
$$;
