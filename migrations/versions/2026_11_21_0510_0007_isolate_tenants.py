"""Row-level security on every table of tenants, and the two roles the server works as.

Roles belong to the whole server and other databases on it may use them: going down leaves them.
"""

from __future__ import annotations

from alembic import op

from migrations.isolation import APP, OPERATOR, protect, unprotect

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = (
    "project",
    "api_key",
    "limit_policy",
    "limit_state",
    "reservation",
    "usage_rollup",
)
# Appended to, never changed; partitions get no grants, so they are reached through the table only.
_APPEND_ONLY = ("usage_event", "usage_seen")

_ROLES = (
    f"""
    DO $$
    DECLARE
        v_role text;
    BEGIN
        FOREACH v_role IN ARRAY ARRAY['{APP}', '{OPERATOR}'] LOOP
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
                BEGIN
                    EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
                EXCEPTION WHEN duplicate_object OR unique_violation THEN
                    NULL;  -- another database's migration was first
                END;
            END IF;
            -- Whoever migrates owns the tables; as a member of the operators it goes on seeing
            -- their rows, also in the migrations to come.
            IF NOT pg_has_role(current_user, v_role, 'USAGE') THEN
                EXECUTE format('GRANT %I TO %I', v_role, current_user);
            END IF;
        END LOOP;
    END
    $$
    """,
    f"GRANT USAGE ON SCHEMA public TO {APP}, {OPERATOR}",
    f"GRANT SELECT ON alembic_version TO {APP}, {OPERATOR}",
)

_ENTER = (
    # The tenants this transaction has entered; null when there are none, and then no row is seen.
    """
    CREATE FUNCTION sluice_tenants()
    RETURNS uuid[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
        SELECT string_to_array(nullif(current_setting('sluice.tenants', true), ''), ',')::uuid[]
    $$
    """,
    # Returns what it was given, so that a call can depend on it and thus come after it.
    """
    CREATE FUNCTION sluice_enter(p_tenant_id uuid)
    RETURNS uuid LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM set_config('sluice.tenants', p_tenant_id::text, true);
        RETURN p_tenant_id;
    END
    $$
    """,
)

_LOOKUP = (
    # What a presented key is compared with, before it is known whose it is: the one statement of
    # the request path that sees rows of any tenant, by a whole public id only.
    """
    CREATE FUNCTION key_lookup(p_public_id text)
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
                        'limits', to_jsonb(l) - ARRAY['scope_id', 'scope_kind', 'tenant_id']
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
    """,
    "REVOKE ALL ON FUNCTION key_lookup(text) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION key_lookup(text) TO {APP}, {OPERATOR}",
)

_PARTITIONS = (
    # Making a table is the owner's to do; the operators may ask for the ledger's next months.
    """
    CREATE OR REPLACE FUNCTION usage_event_add_partitions(p_from date, p_months integer)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        v_month date;
        v_name text;
        v_added integer := 0;
    BEGIN
        FOR i IN 0 .. p_months - 1 LOOP
            v_month := date_trunc('month', p_from)::date + make_interval(months => i);
            v_name := to_char(v_month, '"usage_event_"YYYY"_"MM');
            IF to_regclass(v_name) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                    v_name,
                    to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                    to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
                );
                EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_name);
                EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_name);
                v_added := v_added + 1;
            END IF;
        END LOOP;
        RETURN v_added;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION usage_event_add_partitions(date, integer) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION usage_event_add_partitions(date, integer) TO {OPERATOR}",
)

_EACH_PARTITION = """
    DO $$
    DECLARE
        v_partition regclass;
    BEGIN
        FOR v_partition IN
            SELECT inhrelid FROM pg_inherits WHERE inhparent = 'usage_event'::regclass
        LOOP
            EXECUTE format('ALTER TABLE %s {} ROW LEVEL SECURITY', v_partition);
            EXECUTE format('ALTER TABLE %s {} ROW LEVEL SECURITY', v_partition);
        END LOOP;
    END
    $$
"""

# At first, and in the order in which the statements of workers take them: a worker that had one of
# them and waited for an earlier one would be in a deadlock with this transaction.
_LOCKS = "LOCK TABLE api_key, tenant, project, limit_policy, limit_state, reservation"

_OLD_PARTITIONS = """
    CREATE OR REPLACE FUNCTION usage_event_add_partitions(p_from date, p_months integer)
    RETURNS integer LANGUAGE plpgsql AS $$
    DECLARE
        v_month date;
        v_added integer := 0;
    BEGIN
        FOR i IN 0 .. p_months - 1 LOOP
            v_month := date_trunc('month', p_from)::date + make_interval(months => i);
            IF to_regclass(to_char(v_month, '"usage_event_"YYYY"_"MM')) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                    to_char(v_month, '"usage_event_"YYYY"_"MM'),
                    to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                    to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
                );
                v_added := v_added + 1;
            END IF;
        END LOOP;
        RETURN v_added;
    END
    $$
    """


def upgrade() -> None:
    op.execute(_LOCKS)
    for statement in (*_ROLES, *_ENTER, *protect("tenant", column="id"), *_LOOKUP, *_PARTITIONS):
        op.execute(statement)
    for table in _TABLES:
        for statement in protect(table):
            op.execute(statement)
    for table in _APPEND_ONLY:
        for statement in protect(table, grants="SELECT, INSERT"):
            op.execute(statement)
    op.execute(_EACH_PARTITION.format("ENABLE", "FORCE"))


def downgrade() -> None:
    op.execute(_EACH_PARTITION.format("NO FORCE", "DISABLE"))
    for table in (*_APPEND_ONLY, *_TABLES, "tenant"):
        for statement in unprotect(table):
            op.execute(statement)
    for statement in (
        _OLD_PARTITIONS,
        f"REVOKE ALL ON FUNCTION usage_event_add_partitions(date, integer) FROM {OPERATOR}",
        "GRANT EXECUTE ON FUNCTION usage_event_add_partitions(date, integer) TO PUBLIC",
        "DROP FUNCTION key_lookup(text)",
        "DROP FUNCTION sluice_enter(uuid)",
        "DROP FUNCTION sluice_tenants()",
        f"REVOKE ALL ON alembic_version FROM {APP}, {OPERATOR}",
        f"REVOKE ALL ON SCHEMA public FROM {APP}, {OPERATOR}",
    ):
        op.execute(statement)
