-- Settles one request whose owner has not renewed its lease for p_patience, and returns its id;
-- null if there is none. A queued request holds nothing to settle, so it goes when its lease does.
-- One per transaction, so that no two reapers can wait for each other's scopes.
CREATE OR REPLACE FUNCTION quota_reap(p_patience interval, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    v_row reservation;
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    SELECT * INTO v_row FROM reservation
    WHERE expires_at <= v_now AND (state = 'queued' OR expires_at <= v_now - p_patience)
    ORDER BY expires_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A line of a batch runs again, and only then is billed.
    IF v_row.state = 'queued'
        OR EXISTS (SELECT FROM batch_line WHERE request_id = v_row.request_id) THEN
        PERFORM quota_release(v_row.request_id, v_row.tenant_id, p_now);
    ELSE
        PERFORM quota_settle(ARRAY[v_row.request_id], ARRAY[v_row.tenant_id],
            ARRAY[v_row.key_id], ARRAY[v_row.model], ARRAY['error'], ARRAY[v_row.prompt_tokens],
            ARRAY[0], ARRAY[v_row.generated_tokens], ARRAY[v_now], ARRAY[NULL::text],
            ARRAY[limit_cost(v_row.prompt_tokens, v_row.generated_tokens, v_row.prompt_price,
                v_row.completion_price)], p_now, ARRAY[v_row.endpoint]);
    END IF;
    RETURN v_row.request_id;
END
$$;
