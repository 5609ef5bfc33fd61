-- The level of a rate after p_amount requests or tokens more, in 60-millionths;
-- tenants.buckets.charged computes the same.
CREATE OR REPLACE FUNCTION limit_charged(p_used bigint, p_amount bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT least(4000000000000000000, greatest(0, p_used + p_amount * 60000000))
$$;
