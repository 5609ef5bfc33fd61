-- Tells every worker to end a request; the one that runs it does. It is in the audit log either
-- way.
CREATE OR REPLACE FUNCTION stream_kill(p_tenant_id uuid, p_request_id uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM audit_record(p_tenant_id, 'stream.kill', p_request_id::text, NULL, NULL);
    PERFORM pg_notify('sluice_changes', 'request ' || p_request_id);
END
$$;
