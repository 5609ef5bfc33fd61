-- The ledger, its sums, what runs now, and what was refused.

-- name: record_usage
-- Ledger, sums, limits and reservations in one transaction: the ids of those that were not there.
SELECT quota_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $12) AS written;

-- name: note_refusals for operator
-- Counts refusals of keys, by their codes; those of tenants that are deleted go unnoted. Rows are
-- written in one order by all callers.
INSERT INTO refusal AS r (tenant_id, hour, key_id, code, times, last_at)
SELECT u.tenant_id, date_trunc('hour', now(), 'UTC'), u.key_id, u.code, u.times, now()
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[]) AS u (tenant_id, key_id, code, times)
INNER JOIN tenant AS t ON t.id = u.tenant_id AND t.deleted_at IS NULL
ORDER BY u.tenant_id, u.key_id, u.code
ON CONFLICT (tenant_id, hour, key_id, code) DO UPDATE
SET times = r.times + excluded.times, last_at = greatest(r.last_at, excluded.last_at);

-- name: list_refusals for operator
-- Who was refused since $2 and why, of all tenants or of $1: those first who were most often.
SELECT tenant_id, key_id, code, sum(times)::bigint AS times, max(last_at) AS last_at
FROM refusal
WHERE ($1::uuid IS NULL OR tenant_id = $1) AND hour > $2::timestamptz - interval '1 hour'
GROUP BY tenant_id, key_id, code
ORDER BY times DESC, last_at DESC, tenant_id, key_id, code
LIMIT $3;

-- name: sum_usage for tenant
-- A tenant's sums by whatever is asked for, from one snapshot.
SELECT * FROM usage_sums($1, $2, $3, $4, $5, NULL, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: sum_all_usage for operator
-- Everybody's sums by whatever is asked for, from one snapshot.
SELECT * FROM usage_sums(NULL, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: list_running for operator
-- Requests that hold a reservation, of a tenant or of all.
SELECT
    r.request_id, r.tenant_id, t.name AS tenant_name, r.key_id, k.name AS key_name, k.public_id,
    r.model, r.state, r.owner, r.prompt_tokens, r.generated_tokens, r.created_at
FROM reservation AS r
JOIN tenant AS t ON t.id = r.tenant_id
JOIN api_key AS k ON k.id = r.key_id
WHERE $1::uuid IS NULL OR r.tenant_id = $1
ORDER BY r.created_at, r.request_id;

-- name: list_usage for tenant
-- Single requests of a tenant, the newest first, a page of them.
SELECT
    request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens, completion_tokens,
    created_at, end_user, cost_micro, endpoint
FROM usage_event
WHERE
    tenant_id = $1 AND created_at >= $2 AND created_at < $3
    AND (created_at, request_id) < ($4, $5)
    AND ($6::uuid IS NULL OR key_id = $6) AND ($7::text IS NULL OR model = $7)
    AND ($8::text IS NULL OR status = $8) AND ($9::text IS NULL OR end_user = $9)
    AND ($10::text IS NULL OR endpoint = $10)
ORDER BY created_at DESC, request_id DESC
LIMIT $11;

-- name: list_all_usage for operator
-- Single requests of everybody, the newest first, a page of them.
SELECT
    request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens, completion_tokens,
    created_at, end_user, cost_micro, endpoint
FROM usage_event
WHERE
    created_at >= $1 AND created_at < $2
    AND (created_at, request_id) < ($3, $4)
    AND ($5::uuid IS NULL OR key_id = $5) AND ($6::text IS NULL OR model = $6)
    AND ($7::text IS NULL OR status = $7) AND ($8::text IS NULL OR end_user = $8)
    AND ($9::text IS NULL OR endpoint = $9)
ORDER BY created_at DESC, request_id DESC
LIMIT $10;

-- name: kill_request for tenant
-- Tells all workers; in the audit log whether or not one of them runs it.
SELECT stream_kill($1, $2);

-- name: ping
-- The cheapest statement that proves the server answers.
SELECT 1;
