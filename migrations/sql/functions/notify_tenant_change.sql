-- Tells all workers that a tenant, or limits of its scopes, have changed.
CREATE OR REPLACE FUNCTION notify_tenant_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('sluice_changes',
        'tenant ' || (to_jsonb(NEW) ->> CASE TG_TABLE_NAME WHEN 'tenant' THEN 'id'
            ELSE 'tenant_id' END));
    RETURN NULL;
END
$$;
