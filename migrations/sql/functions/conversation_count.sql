-- Keeps the sum of what a tenant's conversations take: a tenant may have a million of them.
CREATE OR REPLACE FUNCTION conversation_count() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    v_tenant_id uuid := coalesce(NEW.tenant_id, OLD.tenant_id);
    v_size bigint := coalesce(NEW.size, 0) - coalesce(OLD.size, 0);
BEGIN
    INSERT INTO conversation_use AS u (tenant_id, size) VALUES (v_tenant_id, v_size)
    ON CONFLICT (tenant_id) DO UPDATE SET size = u.size + excluded.size;
    RETURN NULL;
END
$$;
