-- Appends to a file that is not complete, and lets it stay for another hour. False if all files of the
-- tenant would have more than p_max_bytes; null if there is no such file.
CREATE OR REPLACE FUNCTION file_append(
    p_tenant_id uuid, p_file_id text, p_data bytea, p_max_bytes bigint
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_number integer;
    v_size bigint;
BEGIN
    -- One at a time for each tenant, so that the sum is exact; read after the lock is held.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_tenant_id::text, 0));
    SELECT sum(size) INTO v_size FROM file WHERE tenant_id = p_tenant_id;
    IF v_size + octet_length(p_data) > p_max_bytes THEN
        RETURN false;
    END IF;
    UPDATE file
    SET
        size = size + octet_length(p_data), num_chunks = num_chunks + 1,
        expires_at = now() + interval '1 hour'
    WHERE tenant_id = p_tenant_id AND id = p_file_id AND NOT is_complete
    RETURNING num_chunks - 1 INTO v_number;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO file_chunk (tenant_id, file_id, number, data)
    VALUES (p_tenant_id, p_file_id, v_number, p_data);
    RETURN true;
END
$$;
