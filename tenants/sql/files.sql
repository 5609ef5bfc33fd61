-- Files, in chunks.

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
