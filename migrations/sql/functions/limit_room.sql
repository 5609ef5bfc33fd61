-- How many tokens of completion, at most p_wanted, fit beside a prompt into the tokens and the
-- cost that are left (null: no limit). Less than 1: none.
CREATE OR REPLACE FUNCTION limit_room(
    p_wanted bigint, p_prompt bigint, p_tokens_left bigint, p_cost_left bigint,
    p_prompt_price bigint, p_completion_price bigint
)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT least(
    p_wanted,
    p_tokens_left - p_prompt,
    CASE
        WHEN p_cost_left IS NULL THEN NULL
        WHEN greatest(0, p_cost_left)::numeric * 1000000 < p_prompt * p_prompt_price THEN 0
        WHEN p_completion_price > 0 THEN div(
            greatest(0, p_cost_left)::numeric * 1000000 - p_prompt * p_prompt_price,
            p_completion_price
        )
    END
)::bigint
$$;
