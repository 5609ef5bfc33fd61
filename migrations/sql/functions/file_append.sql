-- Appends to a file that is not complete, and lets it stay for another hour. False if all files of the
-- tenant would have more than p_max_bytes; null if there is no such file.
CREATE OR REPLACE FUNCTION file_append(
    p_tenant_id uuid, p_file_id text, p_data bytea, p_max_bytes bigint
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_size bigint;
BEGIN
    -- One at a time for each tenant, so that the sum is exact; read after the lock is held.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_tenant_id::text, 0));
    SELECT sum(size) INTO v_size FROM file WHERE tenant_id = p_tenant_id;
    IF v_size + octet_length(p_data) > p_max_bytes THEN
        RETURN false;
    END IF;
    RETURN nullif(file_add_chunk(p_tenant_id, p_file_id, p_data), false);
END
$$;
