-- What is done now and then, and holds up nobody.

-- name: purge_tenant for operator
-- A portion of what a tenant has stored; 0 when nothing is left.
SELECT tenant_purge($1) AS num_rows;

-- name: touch_keys for operator
-- When keys were used last, many in one statement. Rows are locked in one order by all callers, and
-- not against settlements, which refer to keys; keys that somebody else changes are passed over.
WITH used AS (
    SELECT k.id, u.used_at
    FROM unnest($1::uuid[], $2::timestamptz[]) AS u (id, used_at)
    JOIN api_key AS k ON k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.used_at)
    ORDER BY k.id
    FOR NO KEY UPDATE OF k SKIP LOCKED
)
UPDATE api_key AS k
SET last_used_at = greatest(k.last_used_at, used.used_at)
FROM used
WHERE k.id = used.id;

-- name: roll_up for operator
-- Moves a portion of the newest sums to where they are kept by hour and day.
SELECT usage_roll_up($1) AS moved;

-- name: add_partitions for operator
-- The ledger's partitions of this month and the next two.
SELECT usage_add_partitions((now() AT TIME ZONE 'UTC')::date, 3) AS added;

-- name: drop_partition for operator
-- The oldest of a table's months that ended so many months ago.
SELECT usage_drop_partition(
    $1, (date_trunc('month', now(), 'UTC') - make_interval(months => $2))::date
) AS dropped;

-- name: drop_strays for operator
-- A portion of the requests of those months that are in the default partition.
SELECT usage_drop_strays(
    date_trunc('month', now(), 'UTC') - make_interval(months => $1), $2
) AS dropped;

-- name: forget_requests for operator
-- What made the requests of those months unique whose ids are not by time, from the place $2 of the
-- table to before $3; how many blocks there are in all. So no portion passes over what others deleted.
WITH gone AS (
    DELETE FROM usage_seen_default
    WHERE
        ctid >= $2::tid AND ctid < $3::tid
        AND created_at < date_trunc('month', now(), 'UTC') - make_interval(months => $1)
)
SELECT pg_relation_size('usage_seen_default') / current_setting('block_size')::bigint AS num_blocks;

-- name: delete_expired for operator
-- What is past its end, a batch of each kind; rows that somebody else deletes are passed over. A
-- worker's address stays for a day: all leases may end at once, because the clock was set. $1: for how
-- many days conversations are kept of tenants that say nothing else; null: for ever.
WITH responses AS (
    DELETE FROM response
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM response
        WHERE expires_at <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), chats AS (
    DELETE FROM chat_completion
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM chat_completion
        WHERE expires_at <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), streams AS (
    DELETE FROM ended_stream
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM ended_stream
        WHERE expires_at <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), claims AS (
    DELETE FROM idempotency_key
    WHERE (tenant_id, key_hash) IN (
        SELECT tenant_id, key_hash FROM idempotency_key
        WHERE expires_at <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), files AS (
    -- Each may have hundreds of megabytes.
    DELETE FROM file
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM file
        WHERE expires_at <= now() LIMIT 10 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), lines AS (
    DELETE FROM batch_line
    WHERE (tenant_id, batch_id, number) IN (
        SELECT l.tenant_id, l.batch_id, l.number
        FROM batch AS b
        JOIN batch_line AS l ON l.tenant_id = b.tenant_id AND l.batch_id = b.id
        WHERE b.ended_at IS NOT NULL LIMIT 1000
    )
    RETURNING 1
), batches AS (
    DELETE FROM batch
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM batch AS b
        WHERE
            ended_at <= now() - interval '30 days' AND NOT EXISTS (
                SELECT FROM batch_line AS l WHERE l.tenant_id = b.tenant_id AND l.batch_id = b.id
            )
        LIMIT 1000
    )
    RETURNING 1
), conversations AS (
    DELETE FROM conversation
    WHERE (tenant_id, id) IN (
        SELECT old.tenant_id, old.id
        FROM tenant AS t
        CROSS JOIN LATERAL (
            SELECT c.tenant_id, c.id
            FROM conversation AS c
            WHERE
                c.tenant_id = t.id
                AND c.used_at <= now() - make_interval(days => coalesce(t.conversation_days, $1))
            LIMIT 1000
            FOR UPDATE SKIP LOCKED
        ) AS old
        LIMIT 1000
    )
    RETURNING 1
), refusals AS (
    DELETE FROM refusal
    WHERE (tenant_id, hour, key_id, code) IN (
        SELECT tenant_id, hour, key_id, code FROM refusal
        WHERE hour <= now() - interval '30 days' LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), workers AS (
    DELETE FROM gateway_worker
    WHERE id IN (
        SELECT id FROM gateway_worker
        WHERE expires_at <= now() - interval '1 day' LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
), engines AS (
    DELETE FROM engine_replica
    WHERE id IN (
        SELECT id FROM engine_replica
        WHERE expires_at <= now() - interval '1 day' LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
)
SELECT (
    (SELECT count(*) FROM engines) + (SELECT count(*) FROM responses) + (SELECT count(*) FROM streams)
    + (SELECT count(*) FROM claims) + (SELECT count(*) FROM files)
    + (SELECT count(*) FROM lines) + (SELECT count(*) FROM batches) + (SELECT count(*) FROM workers)
    + (SELECT count(*) FROM chats) + (SELECT count(*) FROM conversations)
    + (SELECT count(*) FROM refusals)
)::integer AS num_rows;

-- name: purge_deleted for operator
-- A portion of what was stored for a tenant that is deleted: what an interrupted deletion has left, and
-- a day later what requests under way have stored since. 0 when there is nothing to do.
WITH due AS MATERIALIZED (
    SELECT id FROM tenant
    WHERE purge_at <= now()
    ORDER BY purge_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
), purged AS MATERIALIZED (
    SELECT id, tenant_purge(id) AS num_rows FROM due
), ended AS (
    UPDATE tenant AS t
    SET purge_at = CASE
        WHEN now() < t.deleted_at + interval '1 day' THEN t.deleted_at + interval '1 day'
    END
    FROM purged
    WHERE t.id = purged.id AND purged.num_rows = 0
    RETURNING 1
)
SELECT
    coalesce((SELECT num_rows FROM purged), 0) + (SELECT count(*) FROM ended) AS num_rows;

-- name: webhook_upkeep for operator
-- Alerts that only time causes, and deliveries that are over.
SELECT webhook_upkeep() AS num_rows;
