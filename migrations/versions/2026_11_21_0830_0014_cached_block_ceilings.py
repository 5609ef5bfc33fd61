"""A ceiling on the cached blocks of a tenant, a project or a key.

Workers of the version before put limits without it, which leaves it as it is, and are not told of
it for keys that have none: they refuse limits they do not know.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLUMN = (
    """
    ALTER TABLE limit_policy
        ADD COLUMN max_cached_blocks integer,
        ADD CONSTRAINT limit_policy_max_cached_blocks_check CHECK (max_cached_blocks >= 0)
    """,
)

_PUT = (
    # False when the tenant has no such scope. What is used so far is refilled at the old rates.
    """
    CREATE FUNCTION limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid,
        p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer,
        p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint,
        p_priority smallint, p_weight double precision, p_max_cached_blocks integer,
        p_now timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM (
            SELECT 'tenant' AS kind, id FROM tenant WHERE id = p_tenant_id
            UNION ALL
            SELECT 'project', id FROM project WHERE tenant_id = p_tenant_id
            UNION ALL
            SELECT 'key', id FROM api_key WHERE tenant_id = p_tenant_id
        ) AS scope
        WHERE scope.kind = p_scope_kind AND scope.id = p_scope_id;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM limit_apply(ARRAY[p_scope_id], p_now,
            limit_month(coalesce(p_now, clock_timestamp())), 0, 0, 0, 0, 0);
        INSERT INTO limit_policy (
            scope_id, scope_kind, tenant_id, requests_per_minute, tokens_per_minute,
            max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight,
            max_cached_blocks
        )
        VALUES (
            p_scope_id, p_scope_kind, p_tenant_id, p_requests_per_minute, p_tokens_per_minute,
            p_max_concurrent, p_max_queued, p_monthly_tokens, p_monthly_cost_micro, p_priority,
            p_weight, p_max_cached_blocks
        )
        ON CONFLICT (scope_id) DO UPDATE SET
            requests_per_minute = excluded.requests_per_minute,
            tokens_per_minute = excluded.tokens_per_minute,
            max_concurrent = excluded.max_concurrent,
            max_queued = excluded.max_queued,
            monthly_tokens = excluded.monthly_tokens,
            monthly_cost_micro = excluded.monthly_cost_micro,
            priority = excluded.priority,
            weight = excluded.weight,
            max_cached_blocks = excluded.max_cached_blocks;
        INSERT INTO limit_state (scope_id, tenant_id) VALUES (p_scope_id, p_tenant_id)
        ON CONFLICT (scope_id) DO NOTHING;
        RETURN true;
    END
    $$
    """,
    # As workers of the version before call it.
    """
    CREATE OR REPLACE FUNCTION limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid,
        p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer,
        p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint,
        p_priority smallint, p_weight double precision, p_now timestamptz)
    RETURNS boolean LANGUAGE sql AS $$
        SELECT limit_put(p_tenant_id, p_scope_kind, p_scope_id, p_requests_per_minute,
            p_tokens_per_minute, p_max_concurrent, p_max_queued, p_monthly_tokens,
            p_monthly_cost_micro, p_priority, p_weight,
            (SELECT max_cached_blocks FROM limit_policy WHERE scope_id = p_scope_id), p_now)
    $$
    """,
)

# Limits that nobody set are left out of {}.
_LOOKUP = """
    CREATE OR REPLACE FUNCTION key_lookup(p_public_id text)
    RETURNS TABLE (
        id uuid, tenant_id uuid, project_id uuid, public_id text, name text, scopes text[],
        allowed_models text[], model_aliases jsonb, created_at timestamptz,
        expires_at timestamptz, revoked_at timestamptz, revoke_at timestamptz,
        last_used_at timestamptz, replaces_key_id uuid, key_hash bytea, tenant_name text,
        weight double precision, priority smallint, tenant_created_at timestamptz,
        disabled_at timestamptz, policies jsonb
    ) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
        SELECT
            k.id, k.tenant_id, k.project_id, k.public_id, k.name, k.scopes, k.allowed_models,
            k.model_aliases, k.created_at, k.expires_at, k.revoked_at, k.revoke_at,
            k.last_used_at, k.replaces_key_id, k.key_hash,
            t.name, t.weight, t.priority, t.created_at, t.disabled_at,
            (
                SELECT jsonb_agg(
                    jsonb_build_object(
                        'scope_kind', l.scope_kind,
                        'scope_id', l.scope_id,
                        'limits', %s - ARRAY['scope_id', 'scope_kind', 'tenant_id']
                    )
                    ORDER BY array_position(ARRAY['key', 'project', 'tenant'], l.scope_kind)
                )
                FROM limit_policy AS l
                WHERE l.scope_id IN (k.id, k.project_id, k.tenant_id)
            )
        FROM api_key AS k
        JOIN tenant AS t ON t.id = k.tenant_id
        WHERE k.public_id = p_public_id
    $$
    """

_OLD_PUT = """
    CREATE OR REPLACE FUNCTION limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid,
        p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer,
        p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint,
        p_priority smallint, p_weight double precision, p_now timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM (
            SELECT 'tenant' AS kind, id FROM tenant WHERE id = p_tenant_id
            UNION ALL
            SELECT 'project', id FROM project WHERE tenant_id = p_tenant_id
            UNION ALL
            SELECT 'key', id FROM api_key WHERE tenant_id = p_tenant_id
        ) AS scope
        WHERE scope.kind = p_scope_kind AND scope.id = p_scope_id;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM limit_apply(ARRAY[p_scope_id], p_now,
            limit_month(coalesce(p_now, clock_timestamp())), 0, 0, 0, 0, 0);
        INSERT INTO limit_policy (
            scope_id, scope_kind, tenant_id, requests_per_minute, tokens_per_minute,
            max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight
        )
        VALUES (
            p_scope_id, p_scope_kind, p_tenant_id, p_requests_per_minute, p_tokens_per_minute,
            p_max_concurrent, p_max_queued, p_monthly_tokens, p_monthly_cost_micro, p_priority,
            p_weight
        )
        ON CONFLICT (scope_id) DO UPDATE SET
            requests_per_minute = excluded.requests_per_minute,
            tokens_per_minute = excluded.tokens_per_minute,
            max_concurrent = excluded.max_concurrent,
            max_queued = excluded.max_queued,
            monthly_tokens = excluded.monthly_tokens,
            monthly_cost_micro = excluded.monthly_cost_micro,
            priority = excluded.priority,
            weight = excluded.weight;
        INSERT INTO limit_state (scope_id, tenant_id) VALUES (p_scope_id, p_tenant_id)
        ON CONFLICT (scope_id) DO NOTHING;
        RETURN true;
    END
    $$
    """


def upgrade() -> None:
    for statement in (*_COLUMN, *_PUT, _LOOKUP % "jsonb_strip_nulls(to_jsonb(l))"):
        op.execute(statement)


def downgrade() -> None:
    for statement in (
        _LOOKUP % "to_jsonb(l)",
        _OLD_PUT,
        "DROP FUNCTION limit_put(uuid, text, uuid, bigint, bigint, integer, integer, bigint, "
        "bigint, smallint, double precision, integer, timestamptz)",
        "ALTER TABLE limit_policy DROP COLUMN max_cached_blocks",
    ):
        op.execute(statement)
