-- Tells all workers that a key has changed.
CREATE OR REPLACE FUNCTION notify_key_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('sluice_changes', 'key ' || NEW.public_id);
    RETURN NULL;
END
$$;
