-- A tenant's adapters as a JSON array ordered by name, or null. Enters the tenant, for a statement
-- that learns only by itself which tenant it is for.
CREATE OR REPLACE FUNCTION adapters_of(p_tenant_id uuid) RETURNS jsonb
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM sluice_enter(p_tenant_id);
    RETURN (
        SELECT jsonb_agg(to_jsonb(a) ORDER BY a.name COLLATE "C")
        FROM adapter AS a WHERE a.tenant_id = p_tenant_id
    );
END
$$;
