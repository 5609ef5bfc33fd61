-- Makes the partition of a month that a table of the ledger lacks; true if it was missing. p_from
-- and p_to are its bounds. Writers of other months do not wait: the new table is made aside, and
-- attaching it takes no lock that they need.
CREATE OR REPLACE FUNCTION usage_add_partition(
    p_table text, p_month date, p_from text, p_to text
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET lock_timeout = '20ms'
AS $$
DECLARE
    v_name text := p_table || to_char(p_month, '"_"YYYY"_"MM');
BEGIN
    IF to_regclass(v_name) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
        v_name, p_table);
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_name);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
        p_table, v_name, p_from, p_to);
    RETURN true;
EXCEPTION WHEN check_violation THEN
    -- The default partition has rows of this month: it keeps the others, too.
    RETURN false;
END
$$;
