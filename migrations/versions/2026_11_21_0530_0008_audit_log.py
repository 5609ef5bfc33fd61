"""An audit log that no change of a tenant, project, key or limit can pass by: triggers write it.

What was and what is, who did it (``sluice.actor``, or the login that typed it), in the transaction
of the change itself. The first admin key is made by a function, which makes it once.
"""

from __future__ import annotations

from alembic import op

from migrations.isolation import protect

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TABLE = (
    """
    CREATE TABLE audit_log (
        id         bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_log_pkey PRIMARY KEY,
        tenant_id  uuid NOT NULL,
        at         timestamptz NOT NULL DEFAULT clock_timestamp(),
        actor      text NOT NULL,
        action     text NOT NULL,
        object_id  text NOT NULL,
        before     jsonb,
        after      jsonb
    )
    """,
    "CREATE INDEX audit_log_tenant_id_id_idx ON audit_log (tenant_id, id)",
    *protect("audit_log", grants="SELECT, INSERT"),
    """
    CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'audit_log is append-only' USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    """
    CREATE TRIGGER audit_log_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only()
    """,
)

_RECORD = (
    """
    CREATE FUNCTION audit_record(p_tenant_id uuid, p_action text, p_object_id text,
        p_before jsonb, p_after jsonb)
    RETURNS void LANGUAGE sql AS $$
        INSERT INTO audit_log (tenant_id, actor, action, object_id, before, after)
        VALUES (
            p_tenant_id,
            coalesce(nullif(current_setting('sluice.actor', true), ''), session_user),
            p_action, p_object_id, p_before, p_after
        )
    $$
    """,
    # The trigger's argument is what a row of its table is called.
    """
    CREATE FUNCTION audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        -- When a key was used last is no change of it, and its hash is nobody's to read.
        v_before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN
            to_jsonb(OLD) - ARRAY['key_hash', 'last_used_at'] END;
        v_after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN
            to_jsonb(NEW) - ARRAY['key_hash', 'last_used_at'] END;
        v_row jsonb := coalesce(v_after, v_before);
        v_verb text := CASE
            WHEN TG_OP = 'INSERT' THEN 'create'
            WHEN TG_OP = 'DELETE' THEN 'delete'
            WHEN v_before ->> 'revoked_at' IS NULL AND v_after ->> 'revoked_at' IS NOT NULL
                THEN 'revoke'
            WHEN v_before -> 'revoke_at' <> v_after -> 'revoke_at' THEN 'rotate'
            ELSE 'update'
        END;
    BEGIN
        IF v_before IS DISTINCT FROM v_after THEN
            PERFORM audit_record(
                coalesce(v_row ->> 'tenant_id', v_row ->> 'id')::uuid,
                TG_ARGV[0] || '.' || v_verb,
                coalesce(v_row ->> 'public_id', v_row ->> 'scope_id', v_row ->> 'id'),
                v_before, v_after
            );
        END IF;
        RETURN NULL;
    END
    $$
    """,
    *(
        f"CREATE TRIGGER {table}_audit AFTER INSERT OR UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION audit_change('{name}')"
        for table, name in (
            ("tenant", "tenant"),
            ("project", "project"),
            ("api_key", "key"),
            ("limit_policy", "limits"),
        )
    ),
)

_KILL = (
    # Every worker is told; the one that runs the request ends it.
    """
    CREATE FUNCTION stream_kill(p_tenant_id uuid, p_request_id uuid)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM audit_record(p_tenant_id, 'stream.kill', p_request_id::text, NULL, NULL);
        PERFORM pg_notify('sluice_changes', 'request ' || p_request_id);
    END
    $$
    """,
)

_BOOTSTRAP = (
    # False when there is an admin key already, whatever became of it. Asked at once, one gets it.
    """
    CREATE FUNCTION key_bootstrap(p_tenant_id uuid, p_tenant_name text, p_key_id uuid,
        p_public_id text, p_key_hash bytea, p_name text)
    RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        v_tenant_id uuid;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('sluice first admin key'));
        IF EXISTS (SELECT FROM api_key WHERE 'admin' = ANY (scopes)) THEN
            RETURN false;
        END IF;
        INSERT INTO tenant (id, name) VALUES (p_tenant_id, p_tenant_name)
        ON CONFLICT (name) DO NOTHING;
        SELECT id INTO STRICT v_tenant_id FROM tenant WHERE name = p_tenant_name;
        INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes)
        VALUES (p_key_id, v_tenant_id, p_public_id, p_key_hash, p_name, ARRAY['admin']);
        RETURN true;
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION key_bootstrap(uuid, text, uuid, text, bytea, text)",
    "DROP FUNCTION stream_kill(uuid, uuid)",
    *(
        f"DROP TRIGGER {table}_audit ON {table}"
        for table in ("limit_policy", "api_key", "project", "tenant")
    ),
    "DROP FUNCTION audit_change()",
    "DROP FUNCTION audit_record(uuid, text, text, jsonb, jsonb)",
    "DROP TABLE audit_log",
    "DROP FUNCTION audit_log_is_append_only()",
)


def upgrade() -> None:
    for statement in (*_TABLE, *_RECORD, *_KILL, *_BOOTSTRAP):
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
