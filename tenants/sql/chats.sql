-- Stored chat completions.

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
