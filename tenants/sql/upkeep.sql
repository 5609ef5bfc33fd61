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
-- What is past its end: see the function.
SELECT delete_expired($1) AS num_rows;

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
