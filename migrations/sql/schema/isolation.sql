-- Row-level security: the database decides which rows a statement sees.
--
--     sluice_app       serves requests; it sees rows of the tenants its transaction has entered
--     sluice_operator  administers and maintains; it sees all rows
--
-- A transaction enters tenants by sluice_enter, which sets sluice.tenants to their ids. The setting
-- ends with the transaction, so a connection that a pooler shares keeps nothing of a tenant. A
-- migration that adds a table with a tenant_id calls sluice_protect for it; a test finds those that
-- do not.
SELECT sluice_protect('tenant', 'id');
SELECT sluice_protect('project');
SELECT sluice_protect('api_key');
SELECT sluice_protect('limit_policy');
SELECT sluice_protect('limit_state');
SELECT sluice_protect('reservation');
SELECT sluice_protect('refusal');
SELECT sluice_protect('usage_rollup', 'tenant_id', 'SELECT');
SELECT sluice_protect('usage_daily', 'tenant_id', 'SELECT');
SELECT sluice_protect('usage_daily_tenant', 'tenant_id', 'SELECT');
SELECT sluice_protect('usage_delta', 'tenant_id', 'SELECT, INSERT');
SELECT sluice_protect('response');
SELECT sluice_protect('ended_stream');
SELECT sluice_protect('idempotency_key');
SELECT sluice_protect('adapter');
SELECT sluice_protect('mcp_server');
SELECT sluice_protect('conversation');
SELECT sluice_protect('conversation_item');
SELECT sluice_protect('conversation_use');
SELECT sluice_protect('chat_completion');
SELECT sluice_protect('file');
SELECT sluice_protect('file_chunk');
SELECT sluice_protect('batch');
SELECT sluice_protect('batch_line');
SELECT sluice_protect('webhook');
SELECT sluice_protect('webhook_delivery');
-- These are added to and never changed.
SELECT sluice_protect('usage_event', 'tenant_id', 'SELECT, INSERT');
SELECT sluice_protect('usage_seen', 'tenant_id', 'SELECT, INSERT');
SELECT sluice_protect('audit_log', 'tenant_id', 'SELECT, INSERT');
-- Operators move what was added to the sums.
GRANT DELETE ON usage_delta TO sluice_operator;
GRANT INSERT, UPDATE ON usage_rollup, usage_daily, usage_daily_tenant TO sluice_operator;

-- Partitions get no grants, so they are reached through their parents only.
ALTER TABLE usage_event_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_event_default FORCE ROW LEVEL SECURITY;
ALTER TABLE usage_seen_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_seen_default FORCE ROW LEVEL SECURITY;
-- Except for the retention: through the parent it would have to look at all partitions.
CREATE POLICY usage_seen_default_all ON usage_seen_default TO sluice_operator USING (true);
GRANT SELECT, DELETE ON usage_seen_default TO sluice_operator;

-- These are the deployment's, and no tenant's.
GRANT SELECT, INSERT, UPDATE, DELETE ON gateway_worker, engine_replica TO sluice_app, sluice_operator;
GRANT SELECT, INSERT, UPDATE ON model_scaling TO sluice_app, sluice_operator;
