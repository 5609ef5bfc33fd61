-- Puts bytes at the end of a file that is not complete, and lets it stay for another hour. False if
-- there is no such file.
CREATE OR REPLACE FUNCTION file_add_chunk(p_tenant_id uuid, p_file_id text, p_data bytea)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_number integer;
BEGIN
    UPDATE file
    SET
        size = size + octet_length(p_data), num_chunks = num_chunks + 1,
        expires_at = now() + interval '1 hour'
    WHERE tenant_id = p_tenant_id AND id = p_file_id AND NOT is_complete
    RETURNING num_chunks - 1 INTO v_number;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO file_chunk (tenant_id, file_id, number, data)
    VALUES (p_tenant_id, p_file_id, v_number, p_data);
    RETURN true;
END
$$;
