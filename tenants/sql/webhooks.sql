-- Webhooks and their deliveries.

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
