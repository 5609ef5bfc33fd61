-- Every statement the store sends. Each begins with its name and a sentence; values come as $1, $2, …
-- and nothing is ever formatted into the text.

-- name: create_tenant
-- A new customer; the name is unique.
INSERT INTO tenant (id, name, weight, priority)
VALUES ($1, $2, $3, $4)
RETURNING id, name, weight, priority, created_at;

-- name: get_tenant
-- A tenant by its name.
SELECT id, name, weight, priority, created_at
FROM tenant
WHERE name = $1;

-- name: list_tenants
-- All tenants, ordered by code point whatever the database's collation.
SELECT id, name, weight, priority, created_at
FROM tenant
ORDER BY name COLLATE "C";

-- name: create_key
-- A key by its hash; the secret never comes here.
INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at;

-- name: find_key
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT
    k.id, k.tenant_id, k.public_id, k.name, k.scopes, k.created_at, k.expires_at, k.revoked_at,
    k.key_hash,
    t.name AS tenant_name, t.weight, t.priority, t.created_at AS tenant_created_at
FROM api_key AS k
JOIN tenant AS t ON t.id = k.tenant_id
WHERE k.public_id = $1;

-- name: list_keys
-- A tenant's keys, oldest first.
SELECT id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at
FROM api_key
WHERE tenant_id = $1
ORDER BY created_at, public_id COLLATE "C";

-- name: revoke_key
-- Revoking twice keeps the first time.
UPDATE api_key
SET revoked_at = coalesce(revoked_at, now())
WHERE public_id = $1
RETURNING id, tenant_id, public_id, name, scopes, created_at, expires_at, revoked_at;

-- name: record_usage
-- One row per request; returns nothing when the request is in the ledger already.
INSERT INTO usage_event (
    request_id, tenant_id, key_id, model, status,
    prompt_tokens, cached_tokens, completion_tokens, created_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (request_id) DO NOTHING
RETURNING request_id;

-- name: usage_totals
-- Sums over a tenant's ledger.
SELECT
    count(*) AS requests,
    coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
    coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
    coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens
FROM usage_event
WHERE tenant_id = $1;

-- name: ping
-- The cheapest statement that proves the server answers.
SELECT 1;
