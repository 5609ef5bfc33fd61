-- Has thresholds of a changed budget that are not reached yet reported when they are.
CREATE OR REPLACE FUNCTION limit_reported() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE limit_state SET
        reported_tokens = least(reported_tokens, limit_step(month_tokens, NEW.monthly_tokens)),
        reported_cost = least(reported_cost, limit_step(month_cost_micro, NEW.monthly_cost_micro))
    WHERE scope_id = NEW.scope_id;
    RETURN NULL;
END
$$;
