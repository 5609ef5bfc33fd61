-- Deletes what a tenant has stored, a portion of each kind, and returns how many rows that were: none
-- when nothing is left. The ledger and the audit log stay, and with them the rows of keys and projects.
CREATE OR REPLACE FUNCTION tenant_purge(p_tenant_id uuid) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_table text;
    v_rows bigint;
    v_sum bigint := 0;
BEGIN
    FOREACH v_table IN ARRAY ARRAY[
        'conversation', 'response', 'chat_completion', 'ended_stream', 'idempotency_key', 'batch',
        'file', 'adapter', 'mcp_server', 'webhook', 'refusal'
    ] LOOP
        -- Each file may have hundreds of megabytes.
        EXECUTE format(
            'DELETE FROM %1$I WHERE ctid = ANY (ARRAY('
            'SELECT ctid FROM %1$I WHERE tenant_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))', v_table
        ) USING p_tenant_id, CASE v_table WHEN 'file' THEN 10 WHEN 'batch' THEN 10 ELSE 500 END;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_sum := v_sum + v_rows;
    END LOOP;
    DELETE FROM webhook_delivery WHERE tenant_id = p_tenant_id;
    -- In the order in which reservations lock them.
    PERFORM FROM limit_state WHERE tenant_id = p_tenant_id ORDER BY scope_id FOR UPDATE;
    DELETE FROM limit_state WHERE tenant_id = p_tenant_id;
    DELETE FROM limit_policy WHERE tenant_id = p_tenant_id;
    DELETE FROM conversation_use
    WHERE
        tenant_id = p_tenant_id
        AND NOT EXISTS (SELECT FROM conversation WHERE tenant_id = p_tenant_id);
    RETURN v_sum;
END
$$;
