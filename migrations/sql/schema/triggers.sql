-- What happens by itself when a row changes: defaults, notices to the workers, the audit log, and
-- tables that are only ever added to.

CREATE TRIGGER tenant_default_project AFTER INSERT ON tenant
    FOR EACH ROW EXECUTE FUNCTION tenant_gets_default_project();
CREATE TRIGGER api_key_project BEFORE INSERT ON api_key
    FOR EACH ROW EXECUTE FUNCTION api_key_gets_project();

CREATE TRIGGER tenant_notify AFTER UPDATE ON tenant
    FOR EACH ROW EXECUTE FUNCTION notify_tenant_change();
CREATE TRIGGER limit_policy_notify AFTER INSERT OR UPDATE ON limit_policy
    FOR EACH ROW EXECUTE FUNCTION notify_tenant_change();
-- When a key was used last is no change that a worker must hear of.
CREATE TRIGGER api_key_notify
    AFTER INSERT OR UPDATE OF
        key_hash, name, scopes, project_id, allowed_models, model_aliases, expires_at, revoked_at,
        revoke_at
    ON api_key
    FOR EACH ROW EXECUTE FUNCTION notify_key_change();
CREATE TRIGGER adapter_notify AFTER INSERT OR UPDATE OR DELETE ON adapter
    FOR EACH ROW EXECUTE FUNCTION notify_adapter_change();
CREATE TRIGGER engine_replica_notify AFTER INSERT OR UPDATE OR DELETE ON engine_replica
    FOR EACH ROW EXECUTE FUNCTION notify_engine_change();

CREATE TRIGGER conversation_count AFTER INSERT OR UPDATE OF size OR DELETE ON conversation
    FOR EACH ROW EXECUTE FUNCTION conversation_count();

-- Events for webhooks.
CREATE TRIGGER limit_policy_reported
    AFTER UPDATE OF monthly_tokens, monthly_cost_micro ON limit_policy
    FOR EACH ROW EXECUTE FUNCTION limit_reported();
CREATE TRIGGER engine_replica_report AFTER UPDATE OF state, epoch ON engine_replica
    FOR EACH ROW EXECUTE FUNCTION engine_report();

-- The argument is what the audit log calls a row of the table.
CREATE TRIGGER tenant_audit AFTER INSERT OR UPDATE OR DELETE ON tenant
    FOR EACH ROW EXECUTE FUNCTION audit_change('tenant');
CREATE TRIGGER project_audit AFTER INSERT OR UPDATE OR DELETE ON project
    FOR EACH ROW EXECUTE FUNCTION audit_change('project');
-- All columns but last_used_at: last uses are written for thousands of keys at once.
CREATE TRIGGER api_key_audit
    AFTER INSERT OR DELETE OR UPDATE OF
        id, tenant_id, project_id, public_id, key_hash, name, user_name, scopes, allowed_models,
        model_aliases, created_at, expires_at, revoked_at, revoke_at, replaces_key_id
    ON api_key
    FOR EACH ROW EXECUTE FUNCTION audit_change('key');
CREATE TRIGGER limit_policy_audit AFTER INSERT OR UPDATE OR DELETE ON limit_policy
    FOR EACH ROW EXECUTE FUNCTION audit_change('limits');
CREATE TRIGGER adapter_audit AFTER INSERT OR UPDATE OR DELETE ON adapter
    FOR EACH ROW EXECUTE FUNCTION audit_change('adapter');
CREATE TRIGGER mcp_server_audit AFTER INSERT OR UPDATE OR DELETE ON mcp_server
    FOR EACH ROW EXECUTE FUNCTION audit_change('mcp_server');
CREATE TRIGGER webhook_audit
    AFTER INSERT OR DELETE OR UPDATE OF url, events, secret_version, disabled_at ON webhook
    FOR EACH ROW EXECUTE FUNCTION audit_change('webhook');

CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
-- This one is for each row, so that it also holds for statements that name a partition.
CREATE TRIGGER usage_event_append_only BEFORE UPDATE OR DELETE ON usage_event
    FOR EACH ROW EXECUTE FUNCTION usage_event_is_append_only();
CREATE TRIGGER usage_event_not_truncated BEFORE TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION usage_event_is_append_only();
