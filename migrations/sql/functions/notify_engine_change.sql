-- Tells all gateways that an engine came, went or changed its state; not that it renewed its lease.
CREATE OR REPLACE FUNCTION notify_engine_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP <> 'UPDATE' OR (OLD.epoch, OLD.state, OLD.is_drained, OLD.address)
        IS DISTINCT FROM (NEW.epoch, NEW.state, NEW.is_drained, NEW.address)
    THEN
        PERFORM pg_notify('sluice_changes', 'engine ' || coalesce(NEW.id, OLD.id));
    END IF;
    RETURN NULL;
END
$$;
