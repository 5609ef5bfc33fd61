-- What a presented key is compared with before it is known whose it is. This is the one statement
-- of the request path that sees rows of any tenant, and it needs a whole public id. Limits that
-- nobody set are left out of policies.
CREATE OR REPLACE FUNCTION key_lookup(p_public_id text)
RETURNS TABLE (
    id uuid, tenant_id uuid, project_id uuid, public_id text, name text, scopes text[],
    allowed_models text[], model_aliases jsonb, created_at timestamptz, expires_at timestamptz,
    revoked_at timestamptz, revoke_at timestamptz, last_used_at timestamptz, replaces_key_id uuid,
    key_hash bytea, tenant_name text, weight double precision, priority smallint,
    tenant_created_at timestamptz, disabled_at timestamptz, conversation_days integer,
    user_name text, policies jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
SELECT
    k.id, k.tenant_id, k.project_id, k.public_id, k.name, k.scopes, k.allowed_models,
    k.model_aliases, k.created_at, k.expires_at, k.revoked_at, k.revoke_at,
    k.last_used_at, k.replaces_key_id, k.key_hash,
    t.name, t.weight, t.priority, t.created_at, t.disabled_at, t.conversation_days, k.user_name,
    (
        SELECT jsonb_agg(
            jsonb_build_object(
                'scope_kind', l.scope_kind,
                'scope_id', l.scope_id,
                'limits', jsonb_strip_nulls(to_jsonb(l))
                    - ARRAY['scope_id', 'scope_kind', 'tenant_id']
            )
            ORDER BY array_position(ARRAY['key', 'project', 'tenant'], l.scope_kind)
        )
        FROM limit_policy AS l
        WHERE l.scope_id IN (k.id, k.project_id, k.tenant_id)
    )
FROM api_key AS k
JOIN tenant AS t ON t.id = k.tenant_id
WHERE k.public_id = p_public_id
$$;

REVOKE ALL ON FUNCTION key_lookup(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION key_lookup(text) TO sluice_app, sluice_operator;
