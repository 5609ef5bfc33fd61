-- Makes the ledger's partitions of p_months months from p_from on; returns how many were missing.
-- Only the owner can make tables, and operators may ask for it.
CREATE OR REPLACE FUNCTION usage_event_add_partitions(p_from date, p_months integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
DECLARE
    v_month date;
    v_name text;
    v_added integer := 0;
BEGIN
    FOR i IN 0 .. p_months - 1 LOOP
        v_month := date_trunc('month', p_from)::date + make_interval(months => i);
        v_name := to_char(v_month, '"usage_event_"YYYY"_"MM');
        IF to_regclass(v_name) IS NULL THEN
            BEGIN
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                v_name,
                to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
            );
            EXCEPTION WHEN check_violation THEN
                -- The default partition has rows of this month: it keeps the others, too.
                CONTINUE;
            END;
            EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_name);
            EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_name);
            v_added := v_added + 1;
        END IF;
    END LOOP;
    RETURN v_added;
END
$$;

REVOKE ALL ON FUNCTION usage_event_add_partitions(date, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_event_add_partitions(date, integer) TO sluice_operator;
