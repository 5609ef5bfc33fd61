-- Conversations and their items.

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
