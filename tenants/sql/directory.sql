-- Tenants, projects, keys, adapters, MCP servers, and who changed them.

-- name: create_tenant for tenant
-- A new customer; the name is unique.
INSERT INTO tenant (id, name, weight, priority)
VALUES ($1, $2, $3, $4)
RETURNING id, name, weight, priority, created_at, disabled_at, conversation_days;

-- name: get_tenant for operator
-- A tenant by its name.
SELECT id, name, weight, priority, created_at, disabled_at, conversation_days
FROM tenant
WHERE name = $1 AND deleted_at IS NULL;

-- name: get_tenant_by_id for operator
-- A tenant by its id.
SELECT id, name, weight, priority, created_at, disabled_at, conversation_days
FROM tenant
WHERE id = $1 AND deleted_at IS NULL;

-- name: list_tenants for operator
-- Tenants by name, a page of them.
SELECT id, name, weight, priority, created_at, disabled_at, conversation_days
FROM tenant
WHERE
    name > coalesce($2::text, '') AND strpos(lower(name), lower(coalesce($1::text, ''))) > 0
    AND deleted_at IS NULL
ORDER BY name
LIMIT $3;

-- name: update_tenant for tenant
-- Values that are null stay as they are; disabling twice keeps the first time.
UPDATE tenant
SET
    name = coalesce($2, name),
    weight = coalesce($3, weight),
    priority = coalesce($4, priority),
    disabled_at = CASE
        WHEN $5::boolean IS NULL THEN disabled_at
        WHEN $5 THEN coalesce(disabled_at, now())
    END,
    conversation_days = CASE WHEN $6::boolean THEN $7 ELSE conversation_days END
WHERE id = $1 AND deleted_at IS NULL
RETURNING id, name, weight, priority, created_at, disabled_at, conversation_days;

-- name: delete_tenant for operator
-- Nobody uses it from now on, and its name is free; what it has stored goes by purge_tenant.
WITH gone AS (
    UPDATE tenant
    SET
        name = 'deleted ' || id, deleted_at = now(), purge_at = now(),
        disabled_at = coalesce(disabled_at, now())
    WHERE id = $1 AND deleted_at IS NULL
    RETURNING id
), keys AS (
    UPDATE api_key
    SET revoked_at = coalesce(revoked_at, now()), name = 'deleted', user_name = NULL
    WHERE tenant_id = (SELECT id FROM gone)
)
SELECT id FROM gone;

-- name: create_project for tenant
-- A project besides the default one, which a trigger makes with the tenant.
INSERT INTO project (id, tenant_id, name)
VALUES ($1, $2, $3)
RETURNING id, tenant_id, name, is_default, created_at;

-- name: list_projects for tenant
-- A tenant's projects by name, a page of them.
SELECT id, tenant_id, name, is_default, created_at
FROM project
WHERE
    tenant_id = $1 AND name > coalesce($3::text, '')
    AND strpos(lower(name), lower(coalesce($2::text, ''))) > 0
ORDER BY name
LIMIT $4;

-- name: rename_project for tenant
-- Another name for a tenant's project.
UPDATE project
SET name = $3
WHERE tenant_id = $1 AND id = $2
RETURNING id, tenant_id, name, is_default, created_at;

-- name: create_key for tenant
-- A key by its hash; the secret never comes here. A trigger fills in the default project.
INSERT INTO api_key (
    id, tenant_id, project_id, public_id, key_hash, name, scopes, allowed_models, model_aliases,
    expires_at, user_name
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id, user_name;

-- name: rotate_key for operator
-- The old key's end and the new key in one statement; nothing when the old one has ended.
WITH old AS (
    UPDATE api_key
    SET revoke_at = least(revoke_at, now() + $5::interval)
    WHERE public_id = $1 AND revoked_at IS NULL AND (revoke_at IS NULL OR revoke_at > now())
    RETURNING *
)
INSERT INTO api_key (
    id, tenant_id, project_id, public_id, key_hash, name, scopes, allowed_models, model_aliases,
    expires_at, user_name, replaces_key_id
)
SELECT
    $2, tenant_id, project_id, $3, $4, name, scopes, allowed_models, model_aliases, expires_at,
    user_name, id
FROM old
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id, user_name;

-- name: create_first_admin_key for operator
-- False when there is an admin key already.
SELECT key_bootstrap($1, $2, $3, $4, $5, $6) AS made;

-- name: find_key
-- What a presented key is compared with, and whose it is: one round trip per lookup.
SELECT k.*, adapters_of(k.tenant_id) AS adapters FROM key_lookup($1) AS k;

-- name: has_keys for operator
-- Whether there is a key of anybody.
SELECT EXISTS (SELECT FROM api_key) AS has_keys;

-- name: list_keys for tenant
-- A tenant's keys, oldest first, a page of them.
SELECT
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id, user_name
FROM api_key
WHERE
    tenant_id = $1
    AND (created_at, public_id) > (coalesce($3::timestamptz, '-infinity'), coalesce($4::text, ''))
    AND strpos(lower(name || ' ' || public_id), lower(coalesce($2::text, ''))) > 0
ORDER BY created_at, public_id
LIMIT $5;

-- name: names for operator
-- What tenants, projects and keys are called.
SELECT id, name FROM tenant WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT id, name FROM project WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT id, name || ' (' || public_id || ')' FROM api_key WHERE id = ANY ($1::uuid[]);

-- name: revoke_key for operator
-- Revoking twice keeps the first time.
UPDATE api_key
SET revoked_at = coalesce(revoked_at, now())
WHERE public_id = $1
RETURNING
    id, tenant_id, project_id, public_id, name, scopes, allowed_models, model_aliases, created_at,
    expires_at, revoked_at, revoke_at, last_used_at, replaces_key_id, user_name;

-- name: create_adapter for tenant
-- An adapter whose files have been checked; the name is unique among the tenant's.
INSERT INTO adapter (id, tenant_id, name, parent, path, base_model, rank, digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id, tenant_id, name, parent, path, base_model, rank, digest, created_at;

-- name: list_adapters for tenant
-- A tenant's adapters.
SELECT id, tenant_id, name, parent, path, base_model, rank, digest, created_at
FROM adapter
WHERE tenant_id = $1
ORDER BY name COLLATE "C";

-- name: delete_adapter for tenant
-- Its running requests end by themselves.
DELETE FROM adapter
WHERE tenant_id = $1 AND id = $2
RETURNING id, tenant_id, name, parent, path, base_model, rank, digest, created_at;

-- name: allow_mcp_server for tenant
-- Allowed once more, a server only changes.
INSERT INTO mcp_server (tenant_id, url, allow_private)
SELECT $1, $2, $3
WHERE
    EXISTS (SELECT 1 FROM mcp_server WHERE tenant_id = $1 AND url = $2)
    OR (SELECT count(*) FROM mcp_server WHERE tenant_id = $1) < $4::integer
ON CONFLICT (tenant_id, url) DO UPDATE SET allow_private = excluded.allow_private
RETURNING id, tenant_id, url, allow_private, created_at;

-- name: list_mcp_servers for tenant
-- Those that a tenant's responses may use.
SELECT id, tenant_id, url, allow_private, created_at
FROM mcp_server
WHERE tenant_id = $1
ORDER BY url COLLATE "C";

-- name: delete_mcp_server for tenant
-- Calls that are under way end by themselves.
DELETE FROM mcp_server
WHERE tenant_id = $1 AND id = $2
RETURNING id, tenant_id, url, allow_private, created_at;

-- name: list_audit for tenant
-- A tenant's changes, the newest first, a page of them.
SELECT id, tenant_id, at, actor, action, object_id, before, after
FROM audit_log
WHERE
    tenant_id = $1 AND id < $3
    AND strpos(lower(concat_ws(' ', actor, action, object_id)), lower(coalesce($2::text, ''))) > 0
ORDER BY id DESC
LIMIT $4;

-- name: list_all_audit for operator
-- All changes, the newest first, a page of them.
SELECT id, tenant_id, at, actor, action, object_id, before, after
FROM audit_log
WHERE
    id < $2
    AND strpos(lower(concat_ws(' ', actor, action, object_id)), lower(coalesce($1::text, ''))) > 0
ORDER BY id DESC
LIMIT $3;
