-- Leases as many lines of batches as there are p_request_ids, each with one of these. They go to the
-- tenants of whom the fewest lines run, but not to p_except. What was reserved for a line whose owner died is given back:
-- it runs again under another id, so nothing of what is lost is billed.
CREATE OR REPLACE FUNCTION batch_claim(
    p_owner uuid, p_request_ids uuid[], p_lease interval, p_except uuid[]
)
RETURNS TABLE (
    tenant_id uuid, batch_id text, number integer, custom_id text, start bigint, length integer,
    request_id uuid, attempts integer, num_lost integer, endpoint text, public_id text,
    input_file_id text
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_limit integer := cardinality(p_request_ids);
    v_number integer := 0;
    r record;
BEGIN
    FOR r IN
        WITH busy AS (
            SELECT b.tenant_id, (
                SELECT count(*) FROM batch_line AS l
                WHERE l.tenant_id = b.tenant_id AND NOT l.is_done AND l.owner IS NOT NULL
                    AND l.free_at > now()
            ) AS num_running
            FROM batch AS b WHERE b.ended_at IS NULL AND b.status = 'in_progress'
                AND b.tenant_id <> ALL (p_except)
            GROUP BY b.tenant_id
        ), slot AS (
            SELECT busy.tenant_id FROM busy CROSS JOIN generate_series(1, v_limit) AS n
            ORDER BY busy.num_running + n, random() LIMIT v_limit
        ), share AS (
            SELECT slot.tenant_id, count(*) AS num_lines FROM slot GROUP BY slot.tenant_id
        )
        SELECT line.* FROM share CROSS JOIN LATERAL (
            SELECT l.tenant_id, l.batch_id, l.number, l.request_id AS lost_id, l.owner, b.endpoint,
                b.public_id, b.input_file_id
            FROM batch_line AS l
            JOIN batch AS b ON b.tenant_id = l.tenant_id AND b.id = l.batch_id
            WHERE l.tenant_id = share.tenant_id AND NOT l.is_done AND l.free_at <= now()
                AND b.status = 'in_progress' AND b.expires_at > now()
            ORDER BY l.batch_id, l.number LIMIT share.num_lines
            FOR UPDATE OF l SKIP LOCKED
        ) AS line
    LOOP
        v_number := v_number + 1;
        IF r.owner IS NOT NULL THEN
            PERFORM quota_release(r.lost_id, r.tenant_id, NULL);
        END IF;
        UPDATE batch_line AS l
        SET
            owner = p_owner, request_id = p_request_ids[v_number], attempts = l.attempts + 1,
            num_lost = l.num_lost + (r.owner IS NOT NULL)::integer, free_at = now() + p_lease
        WHERE l.tenant_id = r.tenant_id AND l.batch_id = r.batch_id AND l.number = r.number
        RETURNING l.custom_id, l.start, l.length, l.request_id, l.attempts, l.num_lost
        INTO custom_id, start, length, request_id, attempts, num_lost;
        tenant_id := r.tenant_id;
        batch_id := r.batch_id;
        number := r.number;
        endpoint := r.endpoint;
        public_id := r.public_id;
        input_file_id := r.input_file_id;
        RETURN NEXT;
    END LOOP;
END
$$;
