-- Puts a key that names no project into its tenant's default project. Raises foreign_key_violation
-- (api_key_tenant_id_fkey) if there is no such tenant.
CREATE OR REPLACE FUNCTION api_key_gets_project() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF NEW.project_id IS NULL THEN
        SELECT id INTO NEW.project_id
        FROM project WHERE tenant_id = NEW.tenant_id AND is_default;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no tenant %', NEW.tenant_id USING
                ERRCODE = 'foreign_key_violation', CONSTRAINT = 'api_key_tenant_id_fkey';
        END IF;
    END IF;
    RETURN NEW;
END
$$;
