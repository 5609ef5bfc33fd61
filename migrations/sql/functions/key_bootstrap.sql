-- Creates the first key of an owner. False if there is one already, whatever became of it; of
-- several calls at once exactly one creates the key.
CREATE OR REPLACE FUNCTION key_bootstrap(
    p_tenant_id uuid, p_tenant_name text, p_key_id uuid, p_public_id text, p_key_hash bytea,
    p_name text
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_tenant_id uuid;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('sluice first admin key'));
    IF EXISTS (SELECT FROM api_key WHERE 'owner' = ANY (scopes)) THEN
        RETURN false;
    END IF;
    INSERT INTO tenant (id, name) VALUES (p_tenant_id, p_tenant_name)
    ON CONFLICT (name) DO NOTHING;
    SELECT id INTO STRICT v_tenant_id FROM tenant WHERE name = p_tenant_name;
    INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes)
    VALUES (p_key_id, v_tenant_id, p_public_id, p_key_hash, p_name, ARRAY['owner']);
    RETURN true;
END
$$;
