-- Enters several tenants until the end of the transaction.
CREATE OR REPLACE FUNCTION sluice_enter_all(p_tenant_ids uuid[]) RETURNS void
LANGUAGE sql
AS $$
SELECT set_config('sluice.tenants', array_to_string(
    ARRAY (SELECT DISTINCT id FROM unnest(p_tenant_ids) AS id), ','), true)
$$;
