-- Registers an engine, or renews its lease. Returns 'ok'; 'epoch over' for one that was given up, or
-- whose name another has taken since: it must come back with a later epoch; or 'other weights' if
-- engines of the same model run with another configuration, which p_config_hash stands for.
CREATE OR REPLACE FUNCTION engine_register(
    p_id text, p_model text, p_config_hash text, p_text_hash text, p_address text,
    p_public_key text, p_protocol integer, p_version text, p_capacity integer, p_epoch bigint,
    p_state text, p_num_running integer, p_num_waiting integer, p_lease interval,
    p_node text DEFAULT NULL, p_num_admitted bigint DEFAULT 0,
    p_queue_time_s double precision DEFAULT 0
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_found engine_replica%ROWTYPE;
BEGIN
    SELECT * INTO v_found FROM engine_replica WHERE id = p_id FOR UPDATE;
    IF FOUND AND (v_found.epoch > p_epoch OR (v_found.epoch = p_epoch AND v_found.state = 'lost')) THEN
        RETURN 'epoch over';
    END IF;
    IF NOT FOUND OR v_found.epoch < p_epoch THEN
        -- One after the other, so that of two first engines of a model one is the first.
        PERFORM pg_advisory_xact_lock(hashtext('sluice engine_register'));
        IF EXISTS (
            SELECT FROM engine_replica AS other
            WHERE other.model = p_model AND other.id <> p_id AND other.config_hash <> p_config_hash
                AND other.state <> 'lost' AND other.expires_at > now()
        ) THEN
            RETURN 'other weights';
        END IF;
    END IF;
    INSERT INTO engine_replica (
        id, model, config_hash, text_hash, address, public_key, protocol, version, capacity, epoch,
        state, num_running, num_waiting, expires_at, node, num_admitted, queue_time_s
    ) VALUES (
        p_id, p_model, p_config_hash, p_text_hash, p_address, p_public_key, p_protocol, p_version,
        p_capacity, p_epoch, p_state, p_num_running, p_num_waiting, now() + p_lease,
        p_node, p_num_admitted, p_queue_time_s
    )
    ON CONFLICT (id) DO UPDATE SET
        model = excluded.model, config_hash = excluded.config_hash, text_hash = excluded.text_hash,
        address = excluded.address, public_key = excluded.public_key, protocol = excluded.protocol,
        version = excluded.version, capacity = excluded.capacity, state = excluded.state,
        num_running = excluded.num_running, num_waiting = excluded.num_waiting,
        expires_at = excluded.expires_at, epoch = excluded.epoch, node = excluded.node,
        num_admitted = excluded.num_admitted, queue_time_s = excluded.queue_time_s,
        started_at = CASE WHEN engine_replica.epoch = excluded.epoch THEN engine_replica.started_at
            ELSE now() END;
    RETURN 'ok';
END
$$;
