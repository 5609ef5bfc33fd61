-- The highest threshold of a budget that is reached, in percent; 0 if none is, or there is no budget.
CREATE OR REPLACE FUNCTION limit_step(p_used bigint, p_budget bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT CASE
    WHEN p_budget > 0 AND p_used >= p_budget THEN 100
    WHEN p_budget > 0 AND p_used * 5 >= p_budget * 4 THEN 80
    WHEN p_budget > 0 AND p_used * 2 >= p_budget THEN 50
    ELSE 0
END::smallint
$$;
