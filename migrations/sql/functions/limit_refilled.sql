-- The level of a rate at p_now; tenants.buckets.refilled computes the same. The inner least()
-- keeps the product within 64 bits.
CREATE OR REPLACE FUNCTION limit_refilled(
    p_used bigint, p_per_minute bigint, p_since timestamptz, p_now timestamptz
)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT CASE
    WHEN p_used = 0 OR p_per_minute IS NULL OR p_since = '-infinity' THEN 0
    ELSE greatest(0, p_used - p_per_minute * least(
        p_used / p_per_minute + 1,
        greatest(0, (extract(epoch FROM p_now - p_since) * 1000000)::bigint)
    ))
END
$$;
