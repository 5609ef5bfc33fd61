-- Drops the ledger's partitions that end before p_before; returns how many. Only the owner can
-- drop tables, and operators may ask for it.
CREATE OR REPLACE FUNCTION usage_event_drop_partitions(p_before date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    v_name text;
    v_dropped integer := 0;
BEGIN
    FOR v_name IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'usage_event'::regclass
            AND c.relname ~ '^usage_event_[0-9]{4}_[0-9]{2}$'
            AND to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month' <= p_before
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE %I', v_name);
        v_dropped := v_dropped + 1;
    END LOOP;
    RETURN v_dropped;
END
$$;

REVOKE ALL ON FUNCTION usage_event_drop_partitions(date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_event_drop_partitions(date) TO sluice_operator;
