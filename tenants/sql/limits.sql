-- Limits, reservations and leases.

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
