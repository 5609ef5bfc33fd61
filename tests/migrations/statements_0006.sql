-- Every statement of the version before row-level security, as its workers go on sending them while a
-- newer version is rolled out.

-- name: create_tenant
-- A new customer; the name is unique.
INSERT INTO tenant (id, name, weight, priority)
VALUES ($1, $2, $3, $4)
RETURNING id, name, weight, priority, created_at, disabled_at;

-- name: get_tenant
-- A tenant by its name.
SELECT id, name, weight, priority, created_at, disabled_at
FROM tenant
WHERE name = $1;

-- name: list_tenants
-- All tenants, ordered by code point whatever the database's collation.
SELECT id, name, weight, priority, created_at, disabled_at
FROM tenant
ORDER BY name COLLATE "C";

-- name: update_tenant
-- Values that are null stay as they are; disabling twice keeps the first time.
UPDATE tenant
SET
    name = coalesce($2, name),
    weight = coalesce($3, weight),
    priority = coalesce($4, priority),
    disabled_at = CASE
        WHEN $5::boolean IS NULL THEN disabled_at
        WHEN $5 THEN coalesce(disabled_at, now())
    END
WHERE id = $1
RETURNING id, name, weight, priority, created_at, disabled_at;

-- name: create_project
-- A project besides the default one, which a trigger makes with the tenant.
INSERT INTO project (id, tenant_id, name)
VALUES ($1, $2, $3)
RETURNING id, tenant_id, name, is_default, created_at;

-- name: list_projects
-- A tenant's projects.
SELECT id, tenant_id, name, is_default, created_at
FROM project
WHERE tenant_id = $1
ORDER BY name COLLATE "C";

-- name: create_key
-- A key by its hash; the secret never comes here. A trigger fills in the default project.
INSERT INTO api_key (
    id, tenant_id, project_id, public_id, key_hash, name, scopes, allowed_models, model_aliases,
    expires_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id;

-- name: rotate_key
-- The old key's end and the new key in one statement; nothing when the old one has ended.
WITH old AS (
    UPDATE api_key
    SET revoke_at = least(revoke_at, now() + $5::interval)
    WHERE public_id = $1 AND revoked_at IS NULL AND (revoke_at IS NULL OR revoke_at > now())
    RETURNING *
)
INSERT INTO api_key (
    id, tenant_id, project_id, public_id, key_hash, name, scopes, allowed_models, model_aliases,
    expires_at, replaces_key_id
)
SELECT
    $2, tenant_id, project_id, $3, $4, name, scopes, allowed_models, model_aliases, expires_at, id
FROM old
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id;

-- name: find_key
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

-- name: list_keys
-- A tenant's keys, oldest first.
SELECT
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id
FROM api_key
WHERE tenant_id = $1
ORDER BY created_at, public_id COLLATE "C";

-- name: revoke_key
-- Revoking twice keeps the first time.
UPDATE api_key
SET revoked_at = coalesce(revoked_at, now())
WHERE public_id = $1
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id;

-- name: touch_keys
-- When keys were used last, many in one statement; rows are locked in one order by all callers.
WITH used AS (
    SELECT k.id, u.used_at
    FROM unnest($1::uuid[], $2::timestamptz[]) AS u (id, used_at)
    JOIN api_key AS k ON k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.used_at)
    ORDER BY k.id
    FOR UPDATE OF k
)
UPDATE api_key AS k
SET last_used_at = greatest(k.last_used_at, used.used_at)
FROM used
WHERE k.id = used.id;

-- name: record_usage
-- Ledger, sums, limits and the reservation in one transaction; false when it was there.
SELECT quota_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS written;

-- name: put_limits
-- False when the tenant has no such scope.
SELECT limit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS found;

-- name: list_limits
-- The limits of a tenant's scopes: tenant, projects, keys.
SELECT
    scope_kind, scope_id, requests_per_minute, tokens_per_minute, max_concurrent, max_queued,
    monthly_tokens, monthly_cost_micro, priority, weight
FROM limit_policy
WHERE tenant_id = $1
ORDER BY array_position(ARRAY['tenant', 'project', 'key'], scope_kind), scope_id;

-- name: reserve
-- Takes from all scopes of a request, or from none.
SELECT * FROM quota_reserve($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: extend
-- More tokens for a completion that runs; null without its reservation.
SELECT quota_extend($1, $2, $3, $4, $5, $6) AS granted;

-- name: release
-- Undoes a reservation that came to nothing.
SELECT quota_release($1, $2, $3) AS found;

-- name: renew
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

-- name: reap
-- Settles one request whose lease ran out.
SELECT quota_reap($1) AS request_id;

-- name: usage_totals
-- Sums over a tenant's ledger, from the sums by the hour.
SELECT
    coalesce(sum(requests), 0)::bigint AS requests,
    coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
    coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
    coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens,
    coalesce(sum(cost_micro), 0)::bigint AS cost_micro
FROM usage_rollup
WHERE tenant_id = $1;

-- name: list_usage
-- A tenant's sums by the hour.
SELECT
    u.tenant_id, k.project_id, u.key_id, u.model, u.hour,
    u.requests, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.cost_micro
FROM usage_rollup AS u
JOIN api_key AS k ON k.id = u.key_id
WHERE u.tenant_id = $1 AND u.hour >= $2 AND u.hour < $3
ORDER BY u.hour, k.project_id, u.key_id, u.model COLLATE "C";

-- name: add_partitions
-- The ledger's partitions of this month and the next two.
SELECT usage_event_add_partitions(now()::date, 3) AS added;

-- name: ping
-- The cheapest statement that proves the server answers.
SELECT 1;
