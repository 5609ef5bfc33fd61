-- Gives each new tenant its default project.
CREATE OR REPLACE FUNCTION tenant_gets_default_project() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO project (tenant_id, name, is_default) VALUES (NEW.id, 'default', true);
    RETURN NULL;
END
$$;
