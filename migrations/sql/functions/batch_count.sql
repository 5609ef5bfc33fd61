-- Counts lines of a batch that are done. It is to be ended when all are.
CREATE OR REPLACE FUNCTION batch_count(
    p_tenant_id uuid, p_batch_id text, p_completed bigint, p_failed bigint
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE batch
    SET
        num_completed = num_completed + p_completed, num_failed = num_failed + p_failed,
        status = CASE WHEN b.is_over THEN 'finalizing' ELSE status END,
        finalizing_at = CASE WHEN b.is_over THEN now() ELSE finalizing_at END
    FROM (
        SELECT
            status = 'in_progress'
            AND num_completed + num_failed + p_completed + p_failed >= num_total AS is_over
        FROM batch WHERE tenant_id = p_tenant_id AND id = p_batch_id FOR UPDATE
    ) AS b
    WHERE tenant_id = p_tenant_id AND id = p_batch_id;
END
$$;
