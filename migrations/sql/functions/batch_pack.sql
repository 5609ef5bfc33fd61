-- Moves the results of lines behind p_after, either those that failed or the others, to the end of a
-- file: about a megabyte of them. Returns the number of the last one; null if there are none, or if
-- the batch was taken by another worker.
CREATE OR REPLACE FUNCTION batch_pack(
    p_tenant_id uuid, p_batch_id text, p_attempts integer, p_file_id text, p_is_failed boolean,
    p_after integer
)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_last integer;
    v_data bytea;
BEGIN
    PERFORM 1 FROM batch
    WHERE tenant_id = p_tenant_id AND id = p_batch_id AND attempts = p_attempts AND ended_at IS NULL
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT max(number), string_agg(result, ''::bytea ORDER BY number) INTO v_last, v_data
    FROM (
        SELECT l.number, l.result, sum(octet_length(l.result)) OVER (ORDER BY l.number) AS total,
            octet_length(l.result) AS size
        FROM (
            SELECT number, result FROM batch_line
            WHERE tenant_id = p_tenant_id AND batch_id = p_batch_id AND number > p_after AND is_done
                AND is_failed = p_is_failed
            ORDER BY number LIMIT 1000
        ) AS l
    ) AS line
    WHERE total - size < 1048576;
    IF v_last IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT file_add_chunk(p_tenant_id, p_file_id, v_data) THEN
        RETURN NULL;
    END IF;
    RETURN v_last;
END
$$;
