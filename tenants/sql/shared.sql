-- What workers share: responses, streams, idempotency keys, the addresses of workers and engines.

-- name: put_response for tenant
-- A response that can be come back to; written again when a background one has ended.
INSERT INTO response (
    tenant_id, id, status, body, input, previous_response_id, created_at, expires_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval)
ON CONFLICT (tenant_id, id) DO UPDATE
SET status = excluded.status, body = excluded.body, expires_at = excluded.expires_at;

-- name: find_response for tenant
-- A response by its id.
SELECT id, tenant_id, status, body, input, previous_response_id, created_at
FROM response
WHERE tenant_id = $1 AND id = $2 AND expires_at > now();

-- name: lineage for tenant
-- A response and those it continues, until there are $3 or more than $5 bytes; what is in use is
-- kept on, which is written once a day.
WITH RECURSIVE line AS (
    SELECT
        r.id, r.tenant_id, r.status, r.body, r.input, r.previous_response_id, r.created_at,
        1 AS depth, (octet_length(r.body) + octet_length(r.input))::bigint AS total
    FROM response AS r
    WHERE r.tenant_id = $1 AND r.id = $2 AND r.expires_at > now()
    UNION ALL
    SELECT
        p.id, p.tenant_id, p.status, p.body, p.input, p.previous_response_id, p.created_at,
        line.depth + 1, line.total + octet_length(p.body) + octet_length(p.input)
    FROM line
    JOIN response AS p
        ON p.tenant_id = $1 AND p.id = line.previous_response_id AND p.expires_at > now()
    WHERE line.depth < $3 AND line.total <= $5::bigint
), used AS (
    SELECT r.id
    FROM response AS r
    JOIN line ON line.id = r.id
    WHERE
        r.tenant_id = $1
        AND r.expires_at < now() + $4::interval - least(interval '1 day', $4::interval / 2)
    FOR UPDATE OF r SKIP LOCKED
), kept AS (
    UPDATE response AS r
    SET expires_at = now() + $4::interval
    FROM used
    WHERE r.tenant_id = $1 AND r.id = used.id
)
SELECT id, tenant_id, status, body, input, previous_response_id, created_at
FROM line
ORDER BY depth DESC;

-- name: delete_response for tenant
-- The row is returned when it was there.
DELETE FROM response
WHERE tenant_id = $1 AND id = $2
RETURNING id;

-- name: trim_responses for tenant
-- The oldest ones of a tenant, above so many bytes.
DELETE FROM response
WHERE tenant_id = $1 AND id IN (
    SELECT s.id
    FROM (
        SELECT r.id, sum(r.size) OVER (ORDER BY r.created_at DESC, r.id) AS total
        FROM response AS r
        WHERE r.tenant_id = $1
    ) AS s
    WHERE s.total > $2::bigint
)
RETURNING id;

-- name: put_stream
-- The log of a stream that has ended; the first one of an id stays. In one round trip.
INSERT INTO ended_stream (tenant_id, id, kind, num_dropped, items, expires_at)
SELECT tenant, $2, $3, $4, $5, now() + $6::interval FROM sluice_enter($1) AS tenant
ON CONFLICT (tenant_id, id) DO NOTHING;

-- name: put_stream_many
-- The same for many streams at once, of any tenants.
INSERT INTO ended_stream (tenant_id, id, kind, num_dropped, items, expires_at)
SELECT s.tenant_id, s.id, s.kind, s.num_dropped, s.items, now() + s.retention
FROM sluice_enter_all($2::uuid[])
CROSS JOIN unnest($1::text[], $2, $3::text[], $4::integer[], $5::bytea[], $6::interval[])
    AS s (id, tenant_id, kind, num_dropped, items, retention)
ORDER BY s.tenant_id, s.id
ON CONFLICT (tenant_id, id) DO NOTHING;

-- name: find_stream for tenant
-- The log of a stream by its id.
SELECT id, tenant_id, kind, num_dropped, items
FROM ended_stream
WHERE tenant_id = $1 AND id = $2 AND expires_at > now();

-- name: delete_stream for tenant
-- The row is returned when it was there.
DELETE FROM ended_stream
WHERE tenant_id = $1 AND id = $2
RETURNING id;

-- name: trim_streams for tenant
-- The oldest ones of a tenant, above so many bytes.
DELETE FROM ended_stream
WHERE tenant_id = $1 AND id IN (
    SELECT s.id
    FROM (
        SELECT e.id, sum(e.size) OVER (ORDER BY e.ended_at DESC, e.id) AS total
        FROM ended_stream AS e
        WHERE e.tenant_id = $1
    ) AS s
    WHERE s.total > $2::bigint
)
RETURNING id;

-- name: claim for tenant
-- Takes an idempotency key that nobody has, or nobody has any more; else no row.
INSERT INTO idempotency_key AS k (tenant_id, key_hash, body_hash, answer_id, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::interval)
ON CONFLICT (tenant_id, key_hash) DO UPDATE
SET
    body_hash = excluded.body_hash, answer_id = excluded.answer_id, created_at = now(),
    expires_at = excluded.expires_at
WHERE k.expires_at <= now()
RETURNING k.answer_id;

-- name: find_claim_many
-- Who has these idempotency keys, of any tenants: a row for each that somebody has.
SELECT tenant_id, key_hash, body_hash, answer_id FROM claims_find($1, $2);

-- name: release_claim for tenant
-- Lets go of a key, if it still stands for this answer.
DELETE FROM idempotency_key
WHERE tenant_id = $1 AND key_hash = $2 AND answer_id = $3
RETURNING answer_id;

-- name: trim_claims for tenant
-- The oldest keys of a tenant, above so many.
DELETE FROM idempotency_key
WHERE tenant_id = $1 AND key_hash IN (
    SELECT k.key_hash
    FROM idempotency_key AS k
    WHERE k.tenant_id = $1
    ORDER BY k.created_at DESC, k.key_hash
    OFFSET $2::bigint
)
RETURNING answer_id;

-- name: register_worker
-- Where a gateway worker can be reached by the others.
INSERT INTO gateway_worker (id, address, expires_at)
VALUES ($1, $2, now() + $3::interval)
ON CONFLICT (id) DO UPDATE
SET address = excluded.address, expires_at = excluded.expires_at;

-- name: find_worker
-- The address of a worker, and whether its lease runs.
SELECT address, expires_at > now() AS is_leased
FROM gateway_worker
WHERE id = $1;

-- name: list_workers
-- The workers whose lease runs.
SELECT id
FROM gateway_worker
WHERE expires_at > now()
ORDER BY id;

-- name: forget_worker
-- A worker has left.
DELETE FROM gateway_worker
WHERE id = $1;

-- name: register_engine
-- An engine registers itself, or renews its lease: see the function.
SELECT engine_register($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
    AS verdict;

-- name: list_engines
-- All engines that are registered, and whether their leases run.
SELECT id, model, config_hash, text_hash, address, public_key, protocol, version, capacity, epoch,
    state, is_drained, num_running, num_waiting, num_admitted, queue_time_s, node, started_at,
    expires_at > now() AS is_leased, coalesce(restart_epoch = epoch, false) AS is_to_restart
FROM engine_replica
ORDER BY id;

-- name: lose_engine
-- Give up an engine whose lease is over. If it has renewed it meanwhile, nothing happens.
UPDATE engine_replica SET state = 'lost'
WHERE id = $1 AND epoch = $2 AND expires_at <= now()
RETURNING id;

-- name: drain_engine
-- Drain an engine, or end that.
UPDATE engine_replica SET is_drained = $2
WHERE id = $1
RETURNING id;

-- name: restart_engine
-- Have whoever runs an engine start it anew, if it is still in this epoch.
UPDATE engine_replica SET restart_epoch = epoch
WHERE id = $1 AND epoch = $2
RETURNING id;

-- name: forget_engine
-- An engine has left.
DELETE FROM engine_replica
WHERE id = $1 AND epoch = $2;

-- name: want_model
-- A gateway has a request for a model that no engine can take. Whether anybody is there to start one.
INSERT INTO model_scaling AS known (model, wanted_at)
VALUES ($1, now())
ON CONFLICT (model) DO UPDATE SET wanted_at = excluded.wanted_at
RETURNING coalesce(known.expires_at > now(), false) AS is_led;

-- name: lead_model
-- A controller decides about the replicas of a model from now on, or goes on doing so; no row if
-- another one does.
INSERT INTO model_scaling AS known (model, controller, expires_at, num_replicas)
VALUES ($1, $2, now() + $3::interval, $4)
ON CONFLICT (model) DO UPDATE
SET controller = excluded.controller, expires_at = excluded.expires_at,
    num_replicas = coalesce(excluded.num_replicas, known.num_replicas)
WHERE known.controller IS NULL OR known.controller = excluded.controller
    OR known.expires_at <= now()
RETURNING extract(epoch FROM now() - wanted_at)::double precision AS wanted_s, num_replicas;
