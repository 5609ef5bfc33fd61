-- Adds a line to the audit log. The actor is the setting sluice.actor of the transaction, or else
-- the user who is logged in.
CREATE OR REPLACE FUNCTION audit_record(
    p_tenant_id uuid, p_action text, p_object_id text, p_before jsonb, p_after jsonb
)
RETURNS void
LANGUAGE sql
AS $$
INSERT INTO audit_log (tenant_id, actor, action, object_id, before, after)
VALUES (
    p_tenant_id,
    coalesce(nullif(current_setting('sluice.actor', true), ''), session_user),
    p_action, p_object_id, p_before, p_after
)
$$;
