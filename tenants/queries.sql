-- Every statement the store sends. Each begins with its name and a sentence; values come as $1, $2, …
-- and nothing is ever formatted into the text.

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
    SET name = 'deleted ' || id, deleted_at = now(), disabled_at = coalesce(disabled_at, now())
    WHERE id = $1 AND deleted_at IS NULL
    RETURNING id
), keys AS (
    UPDATE api_key
    SET revoked_at = coalesce(revoked_at, now()), name = 'deleted', user_name = NULL
    WHERE tenant_id = (SELECT id FROM gone)
)
SELECT id FROM gone;

-- name: purge_tenant for operator
-- A portion of what a tenant has stored; 0 when nothing is left.
SELECT tenant_purge($1) AS num_rows;

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

-- name: record_usage
-- Ledger, sums, limits and reservations in one transaction: the ids of those that were not there.
SELECT quota_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $12) AS written;

-- name: put_limits for tenant
-- False when the tenant has no such scope.
SELECT limit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS found;

-- name: list_limits for tenant
-- The limits of a tenant's scopes: tenant, projects, keys.
SELECT
    scope_kind, scope_id, requests_per_minute, tokens_per_minute, max_concurrent, max_queued,
    monthly_tokens, monthly_cost_micro, priority, weight, max_cached_blocks
FROM limit_policy
WHERE tenant_id = $1
ORDER BY array_position(ARRAY['tenant', 'project', 'key'], scope_kind), scope_id;

-- name: list_budgets for operator
-- What scopes have used of their limits, of all tenants or of $1, with what running requests hold: those
-- that have used the greatest share of any limit first.
WITH used AS (
    SELECT
        p.*, t.name AS tenant_name,
        (p.requests_per_minute * 60000000 - l.requests + 59999999) / 60000000 AS used_requests,
        (p.tokens_per_minute * 60000000 - l.tokens + 59999999) / 60000000 AS used_tokens,
        s.num_running AS used_slots,
        p.monthly_tokens - l.month_tokens AS used_month_tokens,
        p.monthly_cost_micro - l.month_cost_micro AS used_month_cost_micro
    FROM limit_state AS s
    INNER JOIN limit_policy AS p ON p.scope_id = s.scope_id
    INNER JOIN tenant AS t ON t.id = p.tenant_id
    CROSS JOIN LATERAL limit_left(s, p, now()) AS l
    WHERE $1::uuid IS NULL OR p.tenant_id = $1
)
SELECT
    tenant_id, tenant_name, scope_kind, scope_id, requests_per_minute, tokens_per_minute,
    max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight,
    max_cached_blocks, used_requests, used_tokens, used_slots, used_month_tokens,
    used_month_cost_micro
FROM used
WHERE
    num_nonnulls(
        requests_per_minute, tokens_per_minute, max_concurrent, monthly_tokens, monthly_cost_micro
    ) > 0
ORDER BY
    greatest(
        used_requests / greatest(requests_per_minute, 1)::float8,
        used_tokens / greatest(tokens_per_minute, 1)::float8,
        CASE WHEN max_concurrent IS NOT NULL THEN used_slots / greatest(max_concurrent, 1)::float8 END,
        used_month_tokens / greatest(monthly_tokens, 1)::float8,
        used_month_cost_micro / greatest(monthly_cost_micro, 1)::float8
    ) DESC,
    tenant_name, scope_kind, scope_id
LIMIT $2;

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

-- name: reserve
-- Takes from all scopes of a request, or from none.
SELECT answer.*
FROM sluice_enter($2) AS tenant
CROSS JOIN LATERAL
    quota_reserve($1, tenant, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $12) AS answer;

-- name: reserve_many
-- The same for many requests at once: an answer each, in their order.
SELECT * FROM quota_reserve_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $12);

-- name: month_left for tenant
-- What scopes in which no request runs have left of the month: nothing can come back to them.
SELECT
    p.scope_kind, l.month_tokens AS tokens, l.month_cost_micro AS cost_micro,
    (limit_month(n.now) + interval '1 month') AT TIME ZONE 'UTC' - n.now AS lasts
FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS n
CROSS JOIN limit_state AS s
JOIN limit_policy AS p USING (scope_id)
CROSS JOIN LATERAL limit_left(s, p, n.now) AS l
WHERE s.tenant_id = $1 AND s.scope_id = ANY ($2::uuid[]) AND s.num_running = 0
ORDER BY p.scope_kind;

-- name: balances for operator
-- What scopes have used of their limits, for when nobody can be asked.
SELECT
    s.scope_id,
    n.now AS at,
    limit_refilled(s.requests_used, p.requests_per_minute, s.refilled_at, n.now) AS requests_used,
    limit_refilled(s.tokens_used, p.tokens_per_minute, s.refilled_at, n.now) AS tokens_used,
    s.num_running,
    CASE WHEN s.month >= limit_month(n.now) THEN s.month_tokens ELSE 0 END AS month_tokens,
    CASE WHEN s.month >= limit_month(n.now) THEN s.month_cost_micro ELSE 0 END AS month_cost_micro
FROM (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now) AS n
CROSS JOIN limit_state AS s
JOIN limit_policy AS p USING (scope_id)
WHERE s.scope_id = ANY ($1::uuid[])
ORDER BY s.scope_id;

-- name: extend
-- More tokens for a completion that runs; null without its reservation.
SELECT quota_extend($1, tenant, $3, $4, $5, $6) AS granted FROM sluice_enter($2) AS tenant;

-- name: extend_many
-- The same for many completions at once: an answer each, in their order.
SELECT quota_extend_many($1, $2, $3, $4, $5, $6) AS granted;

-- name: release
-- Undoes a reservation that came to nothing.
SELECT quota_release($1, tenant, $3) AS found FROM sluice_enter($2) AS tenant;

-- name: renew for operator
-- Leases go on, also those that ran out while nobody cleared them away; rows are locked in one order
-- by all callers.
WITH given AS (
    SELECT r.request_id, u.num_generated
    FROM unnest($2::uuid[], $3::integer[]) AS u (request_id, num_generated)
    JOIN reservation AS r ON r.request_id = u.request_id
    WHERE r.owner = $1
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

-- name: reap for operator
-- Settles one request whose lease ran out.
SELECT quota_reap($1, $2) AS request_id;

-- name: clock
-- What time it is for limits and leases.
SELECT coalesce($1::timestamptz, clock_timestamp()) AS now;

-- name: follow_clock for operator
-- Brings back what a clock that was set back has left in the future.
SELECT quota_follow_clock($1, $2);

-- name: sum_usage for tenant
-- A tenant's sums by whatever is asked for, from one snapshot.
SELECT * FROM usage_sums($1, $2, $3, $4, $5, NULL, $6, $7, $8, $9, $10, $11, $12);

-- name: sum_all_usage for operator
-- Everybody's sums by whatever is asked for, from one snapshot.
SELECT * FROM usage_sums(NULL, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

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
    date_trunc('month', now(), 'UTC') - make_interval(months => $1)
) AS dropped;

-- name: forget_requests for operator
-- A portion of what made the requests of those months unique whose ids are not by time.
DELETE FROM usage_seen_default
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM usage_seen_default
    WHERE created_at < date_trunc('month', now(), 'UTC') - make_interval(months => $1)
    LIMIT 10000
))
RETURNING 1;

-- name: ping
-- The cheapest statement that proves the server answers.
SELECT 1;

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

-- name: put_chat for tenant
-- A chat completion that its client wants stored.
INSERT INTO chat_completion (
    tenant_id, id, model, metadata, body, messages, created_at, expires_at
)
VALUES ($1, $2, $3, $4::jsonb, $5, $6, $7, now() + $8::interval)
ON CONFLICT (tenant_id, id) DO NOTHING;

-- name: find_chat for tenant
-- A stored chat by its id.
SELECT id, model, metadata, body, messages, created_at
FROM chat_completion
WHERE tenant_id = $1 AND id = $2 AND expires_at > now();

-- name: update_chat for tenant
-- Replaces its metadata.
UPDATE chat_completion
SET metadata = $3::jsonb
WHERE tenant_id = $1 AND id = $2 AND expires_at > now()
RETURNING id, model, metadata, body, messages, created_at;

-- name: delete_chat for tenant
-- The row is returned when it was there.
DELETE FROM chat_completion
WHERE tenant_id = $1 AND id = $2
RETURNING id;

-- name: list_chats for tenant
-- A page of them: of the model $2 and with the metadata $3, behind the chat $4 if it is given, the
-- last ones first if $5.
SELECT c.id, c.model, c.metadata, c.body, c.messages, c.created_at
FROM chat_completion AS c
WHERE
    c.tenant_id = $1 AND c.expires_at > now()
    AND ($2::text IS NULL OR c.model = $2)
    AND c.metadata @> $3::jsonb
    AND (
        $4::text IS NULL
        OR (
            SELECT CASE
                WHEN $5::boolean THEN (c.created_at, c.id) < (a.created_at, a.id)
                ELSE (c.created_at, c.id) > (a.created_at, a.id)
            END
            FROM chat_completion AS a
            WHERE a.tenant_id = $1 AND a.id = $4
        )
    )
ORDER BY
    CASE WHEN $5::boolean THEN c.created_at END DESC,
    CASE WHEN $5::boolean THEN c.id END DESC,
    c.created_at, c.id
LIMIT $6;

-- name: trim_chats for tenant
-- The oldest ones of a tenant, above so many bytes.
DELETE FROM chat_completion
WHERE tenant_id = $1 AND id IN (
    SELECT s.id
    FROM (
        SELECT c.id, sum(c.size) OVER (ORDER BY c.created_at DESC, c.id) AS total
        FROM chat_completion AS c
        WHERE c.tenant_id = $1
    ) AS s
    WHERE s.total > $2::bigint
)
RETURNING id;

-- name: put_conversation for tenant
-- A new conversation, unless the tenant's would be larger than $4 in all.
INSERT INTO conversation (tenant_id, id, metadata, key_id, size)
SELECT $1, $2, $3, $5, 512 + octet_length($3::bytea)
WHERE
    coalesce((SELECT size FROM conversation_use WHERE tenant_id = $1), 0)
    + 512 + octet_length($3::bytea) <= $4::bigint
RETURNING id, metadata, created_at, used_at;

-- name: find_conversation for tenant
-- A conversation by its id.
SELECT id, metadata, created_at, used_at
FROM conversation
WHERE tenant_id = $1 AND id = $2;

-- name: list_conversations for tenant
-- Those of the key $2, of the keys that it replaces, and of all keys of its user, last used first; of
-- the last 2000 of them, which is what a search may read, those with the text $3, as JSON has it, in
-- a title or a message.
WITH RECURSIVE line AS (
    SELECT id, replaces_key_id, user_name FROM api_key WHERE tenant_id = $1 AND id = $2
    UNION
    SELECT k.id, k.replaces_key_id, k.user_name
    FROM line
    INNER JOIN api_key AS k ON k.id = line.replaces_key_id OR k.user_name = line.user_name
    WHERE k.tenant_id = $1
), mine AS (
    SELECT c.id, c.metadata, c.created_at, c.used_at
    FROM conversation AS c
    WHERE
        c.tenant_id = $1 AND c.key_id IN (SELECT id FROM line)
        AND (
            $4::text IS NULL
            OR (c.used_at, c.id) < (
                SELECT a.used_at, a.id FROM conversation AS a WHERE a.tenant_id = $1 AND a.id = $4
            )
        )
    ORDER BY c.used_at DESC, c.id DESC
    LIMIT 2000
)
SELECT id, metadata, created_at, used_at
FROM mine
WHERE
    $3::text IS NULL
    OR strpos(lower(substring(convert_from(metadata, 'UTF8') FROM '"title":"(.*?[^\\])"')), lower($3)) > 0
    OR EXISTS (
        SELECT FROM conversation_item AS i
        WHERE
            i.tenant_id = $1 AND i.conversation_id = mine.id
            AND strpos(
                lower(substring(convert_from(i.body, 'UTF8') FROM '"text":"(.*?)\}\],"type":"message"')),
                lower($3)
            ) > 0
    )
ORDER BY used_at DESC, id DESC
LIMIT $5;

-- name: update_conversation for tenant
-- Replaces its metadata.
UPDATE conversation
SET metadata = $3, size = size - octet_length(metadata) + octet_length($3::bytea)
WHERE tenant_id = $1 AND id = $2
RETURNING id, metadata, created_at, used_at;

-- name: delete_conversation for tenant
-- With all of its items.
DELETE FROM conversation
WHERE tenant_id = $1 AND id = $2
RETURNING id;

-- name: add_conversation_items for tenant
-- All of them at the end, or none: if there would be more than $5, more bytes than $6, or more of the
-- tenant's in all than $7.
WITH added AS (
    SELECT row.id, row.body, row.number
    FROM unnest($3::text[], $4::bytea[]) WITH ORDINALITY AS row (id, body, number)
), sums AS (
    SELECT count(*)::integer AS num, sum(octet_length(body) + 64) AS size FROM added
), used AS (
    SELECT size FROM conversation_use WHERE tenant_id = $1
), grown AS (
    UPDATE conversation AS c
    SET
        num_items = c.num_items + sums.num,
        next_position = c.next_position + sums.num,
        size = c.size + sums.size,
        used_at = now()
    FROM sums, used
    WHERE
        c.tenant_id = $1 AND c.id = $2
        AND c.num_items + sums.num <= $5::integer
        AND c.size + sums.size <= $6::bigint
        AND used.size + sums.size <= $7::bigint
    RETURNING c.next_position - sums.num AS first
)
INSERT INTO conversation_item (tenant_id, conversation_id, position, id, body)
SELECT $1, $2, grown.first + added.number - 1, added.id, added.body
FROM grown, added
RETURNING position;

-- name: list_conversation_items for tenant
-- A page of them: those behind the item $3 if it is given, the last ones first if $4.
SELECT i.body
FROM conversation_item AS i
WHERE
    i.tenant_id = $1 AND i.conversation_id = $2
    AND (
        $3::text IS NULL
        OR (
            SELECT CASE WHEN $4::boolean THEN i.position < a.position ELSE i.position > a.position END
            FROM conversation_item AS a
            WHERE a.tenant_id = $1 AND a.conversation_id = $2 AND a.id = $3
        )
    )
ORDER BY CASE WHEN $4::boolean THEN -i.position ELSE i.position END
LIMIT $5;

-- name: find_conversation_item for tenant
-- An item by its id.
SELECT body
FROM conversation_item
WHERE tenant_id = $1 AND conversation_id = $2 AND id = $3;

-- name: delete_conversation_item for tenant
-- The conversation without it is returned when the item was there.
WITH gone AS (
    DELETE FROM conversation_item
    WHERE tenant_id = $1 AND conversation_id = $2 AND id = $3
    RETURNING octet_length(body) + 64 AS size
)
UPDATE conversation AS c
SET num_items = c.num_items - 1, size = c.size - gone.size
FROM gone
WHERE c.tenant_id = $1 AND c.id = $2
RETURNING c.id, c.metadata, c.created_at, c.used_at;

-- name: begin_file for tenant
-- A file that nobody finds until it is complete, unless the tenant has $3 of them.
INSERT INTO file (tenant_id, id, filename, purpose, expires_at)
SELECT $1, $2, '', '', now() + interval '1 hour'
WHERE (SELECT count(*) FROM file WHERE tenant_id = $1) < $3::integer
RETURNING id;

-- name: append_to_file for tenant
-- More of its bytes: see the function.
SELECT file_append($1, $2, $3, $4) AS appended;

-- name: complete_file for tenant
-- From now on it is found, until it expires if $5 says when.
UPDATE file
SET filename = $3, purpose = $4, is_complete = true, expires_at = now() + $5::interval
WHERE tenant_id = $1 AND id = $2 AND NOT is_complete
RETURNING id, filename, purpose, size, created_at, expires_at;

-- name: abandon_file for tenant
-- It will not become complete.
DELETE FROM file
WHERE tenant_id = $1 AND id = $2 AND NOT is_complete;

-- name: sum_files for tenant
-- What a tenant's files take.
SELECT coalesce(sum(size), 0)::bigint AS size
FROM file
WHERE tenant_id = $1;

-- name: find_file for tenant
-- A file by its id.
SELECT id, filename, purpose, size, created_at, expires_at
FROM file
WHERE
    tenant_id = $1 AND id = $2 AND is_complete AND (expires_at IS NULL OR expires_at > now());

-- name: list_files for tenant
-- Files of a purpose, or of any, by their ids; from the last one if $4; behind $3.
SELECT id, filename, purpose, size, created_at, expires_at
FROM file
WHERE
    tenant_id = $1 AND is_complete AND (expires_at IS NULL OR expires_at > now())
    AND ($2::text IS NULL OR purpose = $2)
    AND ($3::text IS NULL OR CASE WHEN $4::boolean THEN id < $3 ELSE id > $3 END)
ORDER BY
    CASE WHEN $4::boolean THEN id END DESC, CASE WHEN NOT $4::boolean THEN id END
LIMIT $5;

-- name: delete_file for tenant
-- With all of its bytes; not the input of a batch that runs.
DELETE FROM file AS f
WHERE
    f.tenant_id = $1 AND f.id = $2 AND f.is_complete AND NOT EXISTS (
        SELECT FROM batch AS b
        WHERE b.tenant_id = $1 AND b.input_file_id = f.id AND b.ended_at IS NULL
    )
RETURNING id;

-- name: read_file for tenant
-- A piece of a file.
SELECT data
FROM file_chunk
WHERE tenant_id = $1 AND file_id = $2 AND number = $3;

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

-- name: expire_batches for operator
-- Those whose time is over are to be ended.
UPDATE batch SET status = 'finalizing', ends_as = 'expired', finalizing_at = now()
WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM batch
    WHERE ended_at IS NULL AND status IN ('validating', 'in_progress') AND expires_at <= now()
    FOR UPDATE SKIP LOCKED
);

-- name: step_batch for operator
-- A batch to validate or to end, the oldest first; not while a line of it runs.
UPDATE batch SET attempts = attempts + 1, free_at = now() + $1::interval
WHERE (tenant_id, id) = (
    SELECT b.tenant_id, b.id FROM batch AS b
    WHERE b.ended_at IS NULL AND b.free_at <= now() AND (
        b.status = 'validating' OR b.status IN ('finalizing', 'cancelling') AND NOT EXISTS (
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
-- A portion of what was stored for tenants that are deleted: what an interrupted deletion has left, and
-- what requests under way have stored since.
SELECT coalesce(sum(tenant_purge(id)), 0)::bigint AS num_rows
FROM tenant
WHERE deleted_at > now() - interval '7 days';

-- name: create_webhook for operator
-- A webhook of a tenant, or of the deployment, unless it has as many as it may have.
INSERT INTO webhook (id, tenant_id, url, events)
SELECT $1, $2, $3, $4
WHERE (SELECT count(*) FROM webhook WHERE tenant_id IS NOT DISTINCT FROM $2::uuid) < $5
RETURNING id, tenant_id, url, events, secret_version, old_secret_until, created_at, disabled_at;

-- name: list_webhooks for operator
-- All webhooks, or those of a tenant, the oldest first.
SELECT id, tenant_id, url, events, secret_version, old_secret_until, created_at, disabled_at
FROM webhook
WHERE $1::uuid IS NULL OR tenant_id = $1
ORDER BY created_at, id;

-- name: update_webhook for operator
-- What is null stays as it is.
UPDATE webhook
SET
    url = coalesce($2, url),
    events = coalesce($3, events),
    disabled_at = CASE
        WHEN $4::boolean IS NULL THEN disabled_at
        WHEN $4 THEN coalesce(disabled_at, now())
    END
WHERE id = $1
RETURNING id, tenant_id, url, events, secret_version, old_secret_until, created_at, disabled_at;

-- name: rotate_webhook for operator
-- The next secret; the one before signs too for a while.
UPDATE webhook SET secret_version = secret_version + 1, old_secret_until = now() + $2
WHERE id = $1
RETURNING id, tenant_id, url, events, secret_version, old_secret_until, created_at, disabled_at;

-- name: delete_webhook for operator
-- A webhook goes with its deliveries.
DELETE FROM webhook WHERE id = $1 RETURNING id;

-- name: test_webhook for operator
-- An event for one webhook, whatever types it wants.
INSERT INTO webhook_delivery (event_id, webhook_id, tenant_id, type, body)
SELECT $2, id, tenant_id, 'webhook.test', jsonb_build_object(
    'type', 'webhook.test', 'timestamp', now(), 'data', jsonb_build_object('webhook_id', id))::text
FROM webhook
WHERE id = $1
RETURNING event_id;

-- name: list_deliveries for operator
-- A webhook's deliveries, the newest first.
SELECT event_id, type, state, num_attempts, last_answer, due_at, created_at, ended_at
FROM webhook_delivery
WHERE webhook_id = $1 AND (created_at, event_id) < (coalesce($2::timestamptz, 'infinity'), $3::uuid)
ORDER BY created_at DESC, event_id DESC
LIMIT $4;

-- name: claim_webhooks for operator
-- Webhooks with deliveries that are due: they are the caller's until the lease ends. A subquery in
-- the condition might be run again for each row, and so find more than the limit.
WITH due AS MATERIALIZED (
    SELECT id FROM webhook
    WHERE leased_until <= now() AND disabled_at IS NULL AND id IN (
        SELECT webhook_id FROM webhook_delivery WHERE state = 'pending' AND due_at <= now()
    )
    ORDER BY leased_until LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE webhook AS w SET leased_until = now() + $2
FROM due
WHERE w.id = due.id
RETURNING
    w.id, w.tenant_id, w.url, w.events, w.secret_version, w.old_secret_until, w.created_at,
    w.disabled_at;

-- name: due_deliveries for operator
-- What is due of a webhook, the oldest first.
SELECT event_id, type, body, num_attempts
FROM webhook_delivery
WHERE webhook_id = $1 AND state = 'pending' AND due_at <= now()
ORDER BY due_at, event_id
LIMIT $2;

-- name: note_delivery for operator
-- How an attempt ended; null for the wait: it was the last one.
UPDATE webhook_delivery
SET
    num_attempts = num_attempts + 1, state = $3, last_answer = $4,
    due_at = coalesce(now() + $5::interval, due_at),
    ended_at = CASE WHEN $5::interval IS NULL THEN now() END
WHERE webhook_id = $1 AND event_id = $2 AND state = 'pending';

-- name: release_webhook for operator
-- Whoever claimed a webhook is done with it, for now or until a moment later.
UPDATE webhook SET leased_until = now() + $2 WHERE id = $1;

-- name: webhook_backlog for operator
-- Events that wait to be taken, and how long the oldest has. Those of disabled webhooks wait for
-- somebody to enable them.
SELECT count(*) AS num_pending,
    coalesce(extract(epoch FROM now() - min(d.created_at)), 0)::float8 AS oldest_s
FROM webhook_delivery AS d
JOIN webhook AS w ON w.id = d.webhook_id AND w.disabled_at IS NULL
WHERE d.state = 'pending';

-- name: webhook_upkeep for operator
-- Alerts that only time causes, and deliveries that are over.
SELECT webhook_upkeep() AS num_rows;
