-- The cost of a request in millionths of the currency, rounded up; tenants.types.Price.cost
-- computes the same. Prices are per million tokens.
CREATE OR REPLACE FUNCTION limit_cost(
    p_prompt bigint, p_completion bigint, p_prompt_price bigint, p_completion_price bigint
)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT (p_prompt * p_prompt_price + p_completion * p_completion_price + 999999) / 1000000
$$;
