-- Writes an event when an engine of the registry goes down or is up again. One with a later epoch was
-- started anew, also if nobody saw it down.
CREATE OR REPLACE FUNCTION engine_report() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    v_data jsonb := jsonb_build_object('engine_id', NEW.id, 'model', NEW.model);
BEGIN
    IF OLD.state = 'ready' AND (NEW.state <> 'ready' OR NEW.epoch > OLD.epoch) THEN
        PERFORM webhook_event(NULL, 'engine.down', v_data);
    END IF;
    IF NEW.state = 'ready' AND (OLD.state <> 'ready' OR NEW.epoch > OLD.epoch) THEN
        PERFORM webhook_event(NULL, 'engine.up', v_data);
    END IF;
    RETURN NULL;
END
$$;
