-- Enters one tenant until the end of the transaction. Returns what it was given, so that a call
-- can depend on it and thus comes after it.
CREATE OR REPLACE FUNCTION sluice_enter(p_tenant_id uuid) RETURNS uuid
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('sluice.tenants', p_tenant_id::text, true);
    RETURN p_tenant_id;
END
$$;
