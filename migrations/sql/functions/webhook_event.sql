-- Puts an event into the outbox of each webhook that wants it, as part of the caller's transaction.
-- p_tenant_id: whose it is; null for one of the deployment. p_data must not hold contents of
-- requests. A webhook that has a thousand events waiting gets no more; one of the deployment, of which
-- a hundred are a tenant's, gets no more of that tenant, who would else keep it from all others'.
CREATE OR REPLACE FUNCTION webhook_event(p_tenant_id uuid, p_type text, p_data jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
INSERT INTO webhook_delivery (event_id, webhook_id, tenant_id, type, body)
SELECT e.id, w.id, w.tenant_id, p_type, e.body
FROM (
    SELECT gen_random_uuid() AS id, jsonb_build_object(
        'type', p_type,
        'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'data', jsonb_strip_nulls(jsonb_build_object('tenant_id', p_tenant_id)) || p_data
    )::text AS body
) AS e
CROSS JOIN webhook AS w
WHERE (w.tenant_id IS NULL OR w.tenant_id = p_tenant_id)
    AND w.disabled_at IS NULL AND (w.events = '{}' OR p_type = ANY (w.events))
    AND (
        SELECT count(*) FROM webhook_delivery AS d
        WHERE
            d.webhook_id = w.id AND d.state = 'pending'
            AND d.body::jsonb #>> '{data,tenant_id}' IS NOT DISTINCT FROM p_tenant_id::text
    ) < CASE WHEN w.tenant_id IS NULL AND p_tenant_id IS NOT NULL THEN 100 ELSE 1000 END
$$;

REVOKE ALL ON FUNCTION webhook_event(uuid, text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION webhook_event(uuid, text, jsonb) TO sluice_app, sluice_operator;
