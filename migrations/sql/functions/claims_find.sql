-- Who has these idempotency keys, of any tenants: a row for each that somebody has. It is a
-- function because the tenants must be entered before the rows are looked at.
CREATE OR REPLACE FUNCTION claims_find(p_key_hashes bytea[], p_tenant_ids uuid[])
RETURNS TABLE (tenant_id uuid, key_hash bytea, body_hash bytea, answer_id text)
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM sluice_enter_all(p_tenant_ids);
    RETURN QUERY
        SELECT k.tenant_id, k.key_hash, k.body_hash, k.answer_id
        FROM unnest(p_key_hashes, p_tenant_ids) AS wanted (key_hash, tenant_id)
        JOIN idempotency_key AS k USING (tenant_id, key_hash)
        WHERE k.expires_at > now();
END
$$;

REVOKE ALL ON FUNCTION claims_find(bytea[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION claims_find(bytea[], uuid[]) TO sluice_app, sluice_operator;
