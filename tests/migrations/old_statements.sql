-- Statements of earlier versions that this one does not use any more, each under its name and the
-- revision whose code had it first. While a new version is rolled out they are still asked.

-- name: create_key_0001
-- A key by its hash; the secret never comes here.
INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at;

-- name: create_tenant_0001
-- A new customer; the name is unique.
INSERT INTO tenant (id, name, weight, priority)
VALUES ($1, $2, $3, $4)
RETURNING id, name, weight, priority, created_at;

-- name: find_key_0001
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT
    k.id, k.tenant_id, k.public_id, k.name, k.scopes, k.created_at, k.expires_at, k.revoked_at,
    k.key_hash,
    t.name AS tenant_name, t.weight, t.priority, t.created_at AS tenant_created_at
FROM api_key AS k
JOIN tenant AS t ON t.id = k.tenant_id
WHERE k.public_id = $1;

-- name: get_tenant_0001
-- A tenant by its name.
SELECT id, name, weight, priority, created_at
FROM tenant
WHERE name = $1;

-- name: list_keys_0001
-- A tenant's keys, oldest first.
SELECT id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at
FROM api_key
WHERE tenant_id = $1
ORDER BY created_at, public_id COLLATE "C";

-- name: list_tenants_0001
-- All tenants, ordered by code point whatever the database's collation.
SELECT id, name, weight, priority, created_at
FROM tenant
ORDER BY name COLLATE "C";

-- name: record_usage_0001
-- One row per request; returns nothing when the request is in the ledger already.
INSERT INTO usage_event (
    request_id, tenant_id, key_id, model, status,
    prompt_tokens, cached_tokens, completion_tokens, created_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (request_id) DO NOTHING
RETURNING request_id;

-- name: revoke_key_0001
-- Revoking twice keeps the first time.
UPDATE api_key
SET revoked_at = coalesce(revoked_at, now())
WHERE public_id = $1
RETURNING id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at;

-- name: usage_totals_0001
-- Sums over a tenant's ledger.
SELECT
    count(*) AS requests,
    coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
    coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
    coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens
FROM usage_event
WHERE tenant_id = $1;

-- name: find_key_0002
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT
    k.id, k.tenant_id, k.project_id, k.public_id, k.name, k.scopes, k.allowed_models,
    k.model_aliases, k.created_at, k.expires_at, k.revoked_at, k.revoke_at, k.last_used_at,
    k.replaces_key_id, k.key_hash,
    t.name AS tenant_name, t.weight, t.priority, t.created_at AS tenant_created_at, t.disabled_at
FROM api_key AS k
JOIN tenant AS t ON t.id = k.tenant_id
WHERE k.public_id = $1;

-- name: record_usage_0002
-- One row per request; returns nothing when the request is in the ledger already.
INSERT INTO usage_event (
    request_id, tenant_id, key_id, model, status,
    prompt_tokens, cached_tokens, completion_tokens, created_at, end_user
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (request_id) DO NOTHING
RETURNING request_id;

-- name: list_usage_0003
-- A tenant's sums by the hour.
SELECT
    u.tenant_id, k.project_id, u.key_id, u.model, u.hour,
    u.requests, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.cost_micro
FROM usage_rollup AS u
JOIN api_key AS k ON k.id = u.key_id
WHERE u.tenant_id = $1 AND u.hour >= $2 AND u.hour < $3
ORDER BY u.hour, k.project_id, u.key_id, u.model COLLATE "C";

-- name: record_usage_0003
-- Ledger, sums by the hour and the mark against doubles in one transaction; false when it was there.
SELECT ledger_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS written;

-- name: usage_totals_0003
-- Sums over a tenant's ledger, from the sums by the hour.
SELECT
    coalesce(sum(requests), 0)::bigint AS requests,
    coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
    coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
    coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens,
    coalesce(sum(cost_micro), 0)::bigint AS cost_micro
FROM usage_rollup
WHERE tenant_id = $1;

-- name: extend_0005
-- More tokens for a completion that runs; null without its reservation.
SELECT quota_extend($1, $2, $3, $4, $5, $6) AS granted;

-- name: find_key_0005
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT
    k.id, k.tenant_id, k.project_id, k.public_id, k.name, k.scopes, k.allowed_models,
    k.model_aliases, k.created_at, k.expires_at, k.revoked_at, k.revoke_at, k.last_used_at,
    k.replaces_key_id, k.key_hash,
    t.name AS tenant_name, t.weight, t.priority, t.created_at AS tenant_created_at, t.disabled_at,
    (
        SELECT jsonb_agg(
            jsonb_build_object(
                'scope_kind', l.scope_kind,
                'scope_id', l.scope_id,
                'limits', to_jsonb(l) - ARRAY['scope_id', 'scope_kind', 'tenant_id']
            )
            ORDER BY array_position(ARRAY['key', 'project', 'tenant'], l.scope_kind)
        )
        FROM limit_policy AS l
        WHERE l.scope_id IN (k.id, k.project_id, k.tenant_id)
    ) AS policies
FROM api_key AS k
JOIN tenant AS t ON t.id = k.tenant_id
WHERE k.public_id = $1;

-- name: list_limits_0005
-- The limits of a tenant's scopes: tenant, projects, keys.
SELECT
    scope_kind, scope_id, requests_per_minute, tokens_per_minute, max_concurrent, max_queued,
    monthly_tokens, monthly_cost_micro, priority, weight
FROM limit_policy
WHERE tenant_id = $1
ORDER BY array_position(ARRAY['tenant', 'project', 'key'], scope_kind), scope_id;

-- name: put_limits_0005
-- False when the tenant has no such scope.
SELECT limit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS found;

-- name: reap_0005
-- Settles one request whose lease ran out.
SELECT quota_reap($1) AS request_id;

-- name: record_usage_0005
-- Ledger, sums, limits and the reservation in one transaction; false when it was there.
SELECT quota_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS written;

-- name: release_0005
-- Undoes a reservation that came to nothing.
SELECT quota_release($1, $2, $3) AS found;

-- name: renew_0005
-- Leases that have not run out yet go on; rows are locked in one order by all callers.
WITH given AS (
    SELECT r.request_id, u.num_generated
    FROM unnest($2::uuid[], $3::integer[]) AS u (request_id, num_generated)
    JOIN reservation AS r ON r.request_id = u.request_id
    WHERE r.owner = $1 AND r.expires_at > coalesce($5::timestamptz, clock_timestamp())
    ORDER BY r.request_id
    FOR UPDATE OF r
)
UPDATE reservation AS r
SET
    expires_at = greatest(
        r.expires_at, coalesce($5::timestamptz, clock_timestamp()) + $4::interval
    ),
    generated_tokens = greatest(r.generated_tokens, given.num_generated)
FROM given
WHERE r.request_id = given.request_id
RETURNING r.request_id;

-- name: reserve_0005
-- Takes from all scopes of a request, or from none.
SELECT * FROM quota_reserve($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: find_key_0007
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT * FROM key_lookup($1);

-- name: put_stream_0013
-- The log of a stream that has ended; the first one of an id stays.
INSERT INTO ended_stream (tenant_id, id, kind, num_dropped, items, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::interval)
ON CONFLICT (tenant_id, id) DO NOTHING;

-- name: create_adapter_0015
-- An adapter whose files have been checked; the name is unique among the tenant's.
INSERT INTO adapter (id, tenant_id, name, path, base_model, rank, digest)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, tenant_id, name, path, base_model, rank, digest, created_at;

-- name: delete_adapter_0015
-- Its running requests end by themselves.
DELETE FROM adapter
WHERE tenant_id = $1 AND id = $2
RETURNING id, tenant_id, name, path, base_model, rank, digest, created_at;

-- name: list_adapters_0015
-- A tenant's adapters.
SELECT id, tenant_id, name, path, base_model, rank, digest, created_at
FROM adapter
WHERE tenant_id = $1
ORDER BY name COLLATE "C";

-- name: find_claim_0013
-- Who has an idempotency key.
SELECT body_hash, answer_id
FROM idempotency_key
WHERE tenant_id = $1 AND key_hash = $2 AND expires_at > now();

-- name: find_worker_0013
-- The address of a worker that renews its lease.
SELECT address
FROM gateway_worker
WHERE id = $1 AND expires_at > now();
