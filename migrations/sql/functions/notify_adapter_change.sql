-- Tells all workers that a tenant's adapters have changed.
CREATE OR REPLACE FUNCTION notify_adapter_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('sluice_changes', 'tenant ' || coalesce(NEW.tenant_id, OLD.tenant_id));
    IF TG_OP = 'DELETE' THEN
        PERFORM pg_notify('sluice_changes', 'adapter ' || OLD.id);
    END IF;
    RETURN NULL;
END
$$;
