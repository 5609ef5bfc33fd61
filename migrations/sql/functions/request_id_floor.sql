-- The least id that a request of this moment can have: ids begin with the milliseconds since 1970
-- (RFC 9562, version 7).
CREATE OR REPLACE FUNCTION request_id_floor(p_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT (
    lpad(to_hex((extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20)
)::uuid
$$;
