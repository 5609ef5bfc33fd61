-- Deletes up to p_rows rows from before p_before in the ledger's default partition; returns how many.
-- It deletes through the parent, whose policy lets the owner see the rows. Others that write to this
-- partition wait for the trigger, which is off for this portion only.
CREATE OR REPLACE FUNCTION usage_drop_strays(p_before timestamptz, p_rows integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    v_dropped integer;
BEGIN
    IF NOT EXISTS (
        SELECT FROM usage_event
        WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
    ) THEN
        RETURN 0;
    END IF;
    ALTER TABLE usage_event_default DISABLE TRIGGER usage_event_append_only;
    DELETE FROM usage_event
    WHERE tableoid = 'usage_event_default'::regclass AND ctid = ANY (ARRAY (
        SELECT ctid FROM usage_event
        WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
        LIMIT p_rows
    ));
    GET DIAGNOSTICS v_dropped = ROW_COUNT;
    ALTER TABLE usage_event_default ENABLE TRIGGER usage_event_append_only;
    RETURN v_dropped;
END
$$;

REVOKE ALL ON FUNCTION usage_drop_strays(timestamptz, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_drop_strays(timestamptz, integer) TO sluice_operator;
