-- Refuses every change of the ledger: restrict_violation.
CREATE OR REPLACE FUNCTION usage_event_is_append_only() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'usage_event is append-only' USING ERRCODE = 'restrict_violation';
END
$$;
