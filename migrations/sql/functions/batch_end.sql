-- Ends a batch, and lets its files be found; a file that stayed empty goes. False if another worker has
-- taken the batch.
CREATE OR REPLACE FUNCTION batch_end(
    p_tenant_id uuid, p_batch_id text, p_attempts integer, p_output_id text, p_error_id text
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_batch batch;
BEGIN
    UPDATE batch
    SET status = CASE WHEN status = 'cancelling' THEN 'cancelled' ELSE ends_as END, ended_at = now()
    WHERE tenant_id = p_tenant_id AND id = p_batch_id AND attempts = p_attempts
        AND status IN ('finalizing', 'cancelling')
    RETURNING * INTO v_batch;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM file
    WHERE tenant_id = p_tenant_id AND id IN (p_output_id, p_error_id) AND size = 0;
    UPDATE file
    SET is_complete = true, purpose = 'batch_output', expires_at = now() + v_batch.outputs_last,
        filename = p_batch_id || CASE id WHEN p_output_id THEN '_output' ELSE '_error' END || '.jsonl'
    WHERE tenant_id = p_tenant_id AND id IN (p_output_id, p_error_id);
    UPDATE batch
    SET
        output_file_id = (
            SELECT id FROM file WHERE tenant_id = p_tenant_id AND id = p_output_id),
        error_file_id = (SELECT id FROM file WHERE tenant_id = p_tenant_id AND id = p_error_id)
    WHERE tenant_id = p_tenant_id AND id = p_batch_id;
    PERFORM webhook_event(p_tenant_id, 'batch.' || v_batch.status,
        jsonb_build_object('id', p_batch_id));
    RETURN true;
END
$$;
