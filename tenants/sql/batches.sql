-- Batches and their lines.

-- name: create_batch for tenant
-- A batch over a file, which stays until then; unless the tenant has $10 that run.
WITH input AS (
    UPDATE file SET expires_at = greatest(expires_at, now() + $7::interval + interval '1 day')
    WHERE tenant_id = $1 AND id = $5 AND is_complete
    RETURNING id
)
INSERT INTO batch (
    tenant_id, id, public_id, endpoint, input_file_id, "window", expires_at, metadata, outputs_last
)
SELECT $1, $2, $3, $4, input.id, $6, now() + $7::interval, $8, $9::interval
FROM input
WHERE (SELECT count(*) FROM batch WHERE tenant_id = $1 AND ended_at IS NULL) < $10::integer
RETURNING *;

-- name: find_batch for tenant
-- A batch by its id.
SELECT * FROM batch
WHERE tenant_id = $1 AND id = $2;

-- name: list_batches for tenant
-- Batches, the newest first, behind $2.
SELECT * FROM batch
WHERE tenant_id = $1 AND ($2::text IS NULL OR id < $2)
ORDER BY id DESC
LIMIT $3;

-- name: cancel_batch for tenant
-- It ends when no line of it runs any more.
UPDATE batch
SET status = 'cancelling', cancelling_at = now(), free_at = now(), attempts = attempts + 1
WHERE tenant_id = $1 AND id = $2 AND status IN ('validating', 'in_progress')
RETURNING *;

-- name: claim_lines for operator
-- Lines to run: see the function.
SELECT * FROM batch_claim($1, $2, $3, $4);

-- name: renew_lines for operator
-- Leases go on; how each line's batch is, for those that are still the caller's.
WITH held AS (
    SELECT l.tenant_id, l.batch_id, l.number
    FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::integer[])
        AS u (tenant_id, batch_id, number, attempts)
    JOIN batch_line AS l
        ON l.tenant_id = u.tenant_id AND l.batch_id = u.batch_id AND l.number = u.number
            AND l.attempts = u.attempts
    WHERE l.owner = $1 AND NOT l.is_done
    ORDER BY l.tenant_id, l.batch_id, l.number
    FOR UPDATE OF l
)
UPDATE batch_line AS l
SET free_at = now() + $6::interval
FROM held JOIN batch AS b ON b.tenant_id = held.tenant_id AND b.id = held.batch_id
WHERE l.tenant_id = held.tenant_id AND l.batch_id = held.batch_id AND l.number = held.number
RETURNING l.tenant_id, l.batch_id, l.number, l.attempts, b.status;

-- name: give_back_line for tenant
-- It may be tried again after $5.
UPDATE batch_line
SET owner = NULL, free_at = now() + $5::interval
WHERE
    tenant_id = $1 AND batch_id = $2 AND number = $3 AND attempts = $4 AND owner IS NOT NULL
    AND NOT is_done;

-- name: finish_lines
-- Results, and what was used: see the function.
SELECT batch_finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
    AS kept;

-- name: step_batch for operator
-- A batch to validate or to end, the oldest first; not while a line of it runs. Those whose time is
-- over are to be ended by the next look.
WITH expired AS (
    UPDATE batch SET status = 'finalizing', ends_as = 'expired', finalizing_at = now()
    WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM batch
        WHERE ended_at IS NULL AND status IN ('validating', 'in_progress') AND expires_at <= now()
        FOR UPDATE SKIP LOCKED
    )
)
UPDATE batch SET attempts = attempts + 1, free_at = now() + $1::interval
WHERE (tenant_id, id) = (
    SELECT b.tenant_id, b.id FROM batch AS b
    WHERE b.ended_at IS NULL AND b.free_at <= now() AND (
        b.status = 'validating' AND b.expires_at > now()
        OR b.status IN ('finalizing', 'cancelling') AND NOT EXISTS (
            SELECT FROM batch_line AS l
            WHERE
                l.tenant_id = b.tenant_id AND l.batch_id = b.id AND NOT l.is_done
                AND l.owner IS NOT NULL AND l.free_at > now()
        )
    )
    ORDER BY b.created_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING *;

-- name: keep_batch for tenant
-- The lease of a batch goes on, if the caller still has it.
UPDATE batch SET free_at = now() + $4::interval
WHERE tenant_id = $1 AND id = $2 AND attempts = $3 AND ended_at IS NULL
RETURNING id;

-- name: put_lines for tenant
-- Lines of a batch that is validated; those that are there already stay.
INSERT INTO batch_line (
    tenant_id, batch_id, number, custom_id, start, length, is_done, is_failed, result
)
SELECT
    $1, $2, u.number, u.custom_id, u.start, u.length, u.result IS NOT NULL, u.result IS NOT NULL,
    u.result
FROM unnest($4::integer[], $5::text[], $6::bigint[], $7::integer[], $8::bytea[])
    AS u (number, custom_id, start, length, result)
WHERE EXISTS (
    SELECT FROM batch
    WHERE tenant_id = $1 AND id = $2 AND attempts = $3 AND status = 'validating'
)
ON CONFLICT (tenant_id, batch_id, number) DO NOTHING;

-- name: begin_batch for tenant
-- All lines are there: $4 in all, of which $5 cannot run.
UPDATE batch
SET
    status = CASE WHEN $4::integer = $5::integer THEN 'finalizing' ELSE 'in_progress' END,
    in_progress_at = now(), finalizing_at = CASE WHEN $4::integer = $5::integer THEN now() END,
    num_total = $4, num_failed = $5, errors = $6, free_at = now()
WHERE tenant_id = $1 AND id = $2 AND attempts = $3 AND status = 'validating'
RETURNING id;

-- name: fail_batch for tenant
-- None of its lines runs.
WITH failed AS (
    UPDATE batch
    SET status = 'failed', ended_at = now(), errors = $4
    WHERE tenant_id = $1 AND id = $2 AND attempts = $3 AND status = 'validating'
    RETURNING tenant_id, id
)
SELECT webhook_event(tenant_id, 'batch.failed', jsonb_build_object('id', id))
FROM failed;

-- name: open_lines for tenant
-- Lines of a batch that will not run any more.
SELECT number, custom_id, attempts
FROM batch_line
WHERE tenant_id = $1 AND batch_id = $2 AND NOT is_done
ORDER BY number
LIMIT $3;

-- name: pack_lines for tenant
-- Results into a file: see the function.
SELECT batch_pack($1, $2, $3, $4, $5, $6) AS last;

-- name: end_batch for tenant
-- The batch and its files: see the function.
SELECT batch_end($1, $2, $3, $4, $5) AS ended;

-- name: read_line for tenant
-- The bytes $3 to $3 + $4 of a file of which each row but the last has $5.
SELECT
    substring(data FROM greatest($3::bigint - number::bigint * $5::integer, 0)::integer + 1
        FOR least(
            $4::integer,
            $3::bigint + $4::integer - number::bigint * $5::integer)::integer) AS data
FROM file_chunk
WHERE
    tenant_id = $1 AND file_id = $2 AND number >= $3::bigint / $5::integer
    AND number <= ($3::bigint + $4::integer - 1) / $5::integer
ORDER BY number;

-- name: count_waiting_lines for operator
-- Lines of all batches that have no result yet.
SELECT coalesce(sum(num_total - num_completed - num_failed), 0)::bigint AS waiting
FROM batch
WHERE ended_at IS NULL;
