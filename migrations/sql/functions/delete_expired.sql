-- Deletes what is past its end, a portion of each kind; returns how many rows that were: none when
-- nothing is left. Rows that somebody else deletes are passed over. A worker's address stays for a day:
-- all leases may end at once, because the clock was set. p_conversation_days: for how many days
-- conversations are kept of tenants that say nothing else; null: for ever.
CREATE OR REPLACE FUNCTION delete_expired(p_conversation_days integer) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_kind record;
    v_rows bigint;
    v_sum bigint := 0;
BEGIN
    FOR v_kind IN SELECT * FROM (
        VALUES
            ('response', 'expires_at <= now()', 1000),
            ('chat_completion', 'expires_at <= now()', 1000),
            ('ended_stream', 'expires_at <= now()', 1000),
            ('idempotency_key', 'expires_at <= now()', 1000),
            ('file', 'expires_at <= now()', 10),  -- Each may have hundreds of megabytes.
            ('refusal', 'hour <= now() - interval ''30 days''', 1000),
            ('gateway_worker', 'expires_at <= now() - interval ''1 day''', 1000),
            ('engine_replica', 'expires_at <= now() - interval ''1 day''', 1000)
    ) AS v (name, condition, most)
    LOOP
        EXECUTE format(
            'DELETE FROM %1$I WHERE ctid = ANY (ARRAY('
            'SELECT ctid FROM %1$I WHERE %2$s LIMIT %3$s FOR UPDATE SKIP LOCKED))',
            v_kind.name, v_kind.condition, v_kind.most);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_sum := v_sum + v_rows;
    END LOOP;
    DELETE FROM batch_line
    WHERE (tenant_id, batch_id, number) IN (
        SELECT l.tenant_id, l.batch_id, l.number
        FROM batch AS b
        JOIN batch_line AS l ON l.tenant_id = b.tenant_id AND l.batch_id = b.id
        WHERE b.ended_at IS NOT NULL LIMIT 1000
    );
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_sum + v_rows;
    DELETE FROM batch
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM batch AS b
        WHERE
            ended_at <= now() - interval '30 days' AND NOT EXISTS (
                SELECT FROM batch_line AS l WHERE l.tenant_id = b.tenant_id AND l.batch_id = b.id
            )
        LIMIT 1000
    );
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_sum + v_rows;
    DELETE FROM conversation
    WHERE (tenant_id, id) IN (
        SELECT old.tenant_id, old.id
        FROM tenant AS t
        CROSS JOIN LATERAL (
            SELECT c.tenant_id, c.id
            FROM conversation AS c
            WHERE
                c.tenant_id = t.id
                AND c.used_at <= now()
                    - make_interval(days => coalesce(t.conversation_days, p_conversation_days))
            LIMIT 1000
            FOR UPDATE SKIP LOCKED
        ) AS old
        LIMIT 1000
    );
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_sum + v_rows;
END
$$;
