-- Brings back what a clock that was set back has left in the future. p_lease: the longest lease
-- that anybody takes. Up to a minute is left as it is: no rate holds anybody up for longer, and a
-- clock that swings gives nothing twice. So is the next month, for a clock that was set back over
-- midnight: its budget was begun, and is not granted again.
CREATE OR REPLACE FUNCTION quota_follow_clock(p_lease interval, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_month date := limit_month(v_now);
BEGIN
    PERFORM 1 FROM reservation WHERE expires_at > v_now + p_lease + interval '1 minute'
    ORDER BY request_id FOR UPDATE;
    UPDATE reservation SET expires_at = v_now + p_lease
    WHERE expires_at > v_now + p_lease + interval '1 minute';
    PERFORM 1 FROM limit_state
    WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month'
    ORDER BY scope_id FOR UPDATE;
    UPDATE limit_state SET
        refilled_at = CASE WHEN refilled_at > v_now + interval '1 minute' THEN v_now
            ELSE refilled_at END,
        month = CASE WHEN month > v_month + interval '1 month' THEN v_month ELSE month END
    WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month';
    UPDATE gateway_worker SET expires_at = v_now + p_lease
    WHERE expires_at > v_now + p_lease + interval '1 minute';
    UPDATE engine_replica SET expires_at = v_now + p_lease
    WHERE expires_at > v_now + p_lease + interval '1 minute';
    UPDATE model_scaling SET expires_at = v_now + p_lease
    WHERE expires_at > v_now + p_lease + interval '1 minute';
END
$$;
