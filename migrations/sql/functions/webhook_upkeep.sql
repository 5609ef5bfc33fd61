-- Writes events of keys that expire within seven days, and again within one, and deletes what was
-- delivered or given up a week ago; at most a thousand of each. Returns how many rows it has changed.
-- A key that was made for a shorter time is reported only where that time allows.
CREATE OR REPLACE FUNCTION webhook_upkeep() RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_reported integer;
    v_deleted integer;
BEGIN
    WITH due AS (
        SELECT k.id, d.days FROM api_key AS k
        JOIN tenant AS t ON t.id = k.tenant_id AND t.disabled_at IS NULL
        CROSS JOIN LATERAL (
            SELECT CASE WHEN k.expires_at <= now() + interval '1 day' THEN 1 ELSE 7 END AS days
        ) AS d
        WHERE k.expires_at > now() AND k.expires_at <= now() + interval '7 days'
            AND k.revoked_at IS NULL AND k.revoke_at IS NULL
            AND k.created_at <= k.expires_at - d.days * interval '1 day'
            AND (k.expiry_reported IS NULL OR k.expiry_reported > d.days)
        LIMIT 1000 FOR UPDATE OF k SKIP LOCKED
    ), reported AS (
        UPDATE api_key AS k SET expiry_reported = due.days FROM due WHERE k.id = due.id
        RETURNING k.*
    )
    SELECT count(*) INTO v_reported FROM (
        SELECT webhook_event(tenant_id, 'key.expiring', jsonb_build_object(
            'key_id', id, 'public_id', public_id, 'name', name, 'days', expiry_reported,
            'expires_at', extract(epoch FROM expires_at)::bigint))
        FROM reported
    ) AS told;
    DELETE FROM webhook_delivery WHERE (webhook_id, event_id) IN (
        SELECT webhook_id, event_id FROM webhook_delivery
        WHERE ended_at <= now() - interval '7 days' LIMIT 1000 FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_reported + v_deleted;
END
$$;
