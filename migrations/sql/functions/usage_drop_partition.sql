-- Drops the oldest partition of a table of the ledger (usage_event or usage_seen) that ends before
-- p_before; false if there is none. Only the owner can drop tables, and operators may ask for it.
-- Raises lock_not_available where the table is in use: whoever comes next waits behind this for that
-- long at most, so ask again.
CREATE OR REPLACE FUNCTION usage_drop_partition(p_table text, p_before date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_name text;
BEGIN
    SELECT c.relname INTO v_name
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = CASE p_table
            WHEN 'usage_event' THEN 'usage_event'::regclass
            WHEN 'usage_seen' THEN 'usage_seen'::regclass END
        AND c.relname ~ ('^' || p_table || '_[0-9]{4}_[0-9]{2}$')
        AND to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month' <= p_before
    ORDER BY c.relname LIMIT 1;
    IF v_name IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %I', v_name);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION usage_drop_partition(text, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_drop_partition(text, date) TO sluice_operator;
