-- Makes the partitions of p_months months from p_from on, of the ledger and of the ids that it has
-- seen; returns how many were missing. Only the owner can make tables, and operators may ask for it.
-- Raises lock_not_available where somebody is in the way: ask again.
CREATE OR REPLACE FUNCTION usage_add_partitions(p_from date, p_months integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
DECLARE
    v_month date;
    v_start timestamptz;
    v_end timestamptz;
    v_added integer := 0;
BEGIN
    -- One at a time; to others that ask meanwhile it is a lock that somebody has.
    PERFORM pg_advisory_xact_lock(hashtext('sluice usage partitions'));
    FOR i IN 0 .. p_months - 1 LOOP
        v_month := date_trunc('month', p_from)::date + make_interval(months => i);
        v_start := v_month::timestamp AT TIME ZONE 'UTC';
        v_end := (v_month + interval '1 month') AT TIME ZONE 'UTC';
        v_added := v_added
            + usage_add_partition('usage_event', v_month, v_start::text, v_end::text)::integer
            + usage_add_partition('usage_seen', v_month, request_id_floor(v_start)::text,
                request_id_floor(v_end)::text)::integer;
    END LOOP;
    RETURN v_added;
END
$$;

REVOKE ALL ON FUNCTION usage_add_partitions(date, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION usage_add_partitions(date, integer) TO sluice_operator;
