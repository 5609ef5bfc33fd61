-- The month of budgets: that of UTC.
CREATE OR REPLACE FUNCTION limit_month(p_now timestamptz) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT date_trunc('month', p_now AT TIME ZONE 'UTC')::date
$$;
