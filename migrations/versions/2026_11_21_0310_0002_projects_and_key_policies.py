"""Projects between tenants and keys, and what a key may do: models, aliases, rotation.

Every tenant has one default project, made by a trigger, and a key that names no project gets it by
another: so the version before this one goes on working on this schema.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_UP = (
    "ALTER TABLE tenant ADD COLUMN disabled_at timestamptz",
    """
    CREATE TABLE project (
        id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        tenant_id   uuid NOT NULL CONSTRAINT project_tenant_id_fkey REFERENCES tenant (id),
        name        text NOT NULL,
        is_default  boolean NOT NULL DEFAULT false,
        created_at  timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT project_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
        CONSTRAINT project_tenant_id_name_key UNIQUE (tenant_id, name),
        -- So that a key can name a project together with its tenant.
        CONSTRAINT project_tenant_id_id_key UNIQUE (tenant_id, id)
    )
    """,
    "CREATE UNIQUE INDEX project_is_default_key ON project (tenant_id) WHERE is_default",
    """
    INSERT INTO project (tenant_id, name, is_default, created_at)
    SELECT id, 'default', true, created_at FROM tenant
    """,
    """
    CREATE FUNCTION tenant_gets_default_project() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO project (tenant_id, name, is_default) VALUES (NEW.id, 'default', true);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER tenant_default_project
    AFTER INSERT ON tenant FOR EACH ROW EXECUTE FUNCTION tenant_gets_default_project()
    """,
    """
    ALTER TABLE api_key
        ADD COLUMN project_id uuid,
        ADD COLUMN allowed_models text[] NOT NULL DEFAULT '{}',
        ADD COLUMN model_aliases jsonb NOT NULL DEFAULT '{}',
        ADD COLUMN revoke_at timestamptz,
        ADD COLUMN last_used_at timestamptz,
        ADD COLUMN replaces_key_id uuid
            CONSTRAINT api_key_replaces_key_id_fkey REFERENCES api_key (id)
    """,
    """
    UPDATE api_key AS k
    SET project_id = p.id
    FROM project AS p
    WHERE p.tenant_id = k.tenant_id AND p.is_default
    """,
    """
    ALTER TABLE api_key
        ALTER COLUMN project_id SET NOT NULL,
        ADD CONSTRAINT api_key_project_id_fkey
            FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
        ADD CONSTRAINT api_key_model_aliases_check CHECK (jsonb_typeof(model_aliases) = 'object'),
        DROP CONSTRAINT api_key_scopes_check,
        ADD CONSTRAINT api_key_scopes_check CHECK (
            cardinality(scopes) > 0 AND scopes <@ ARRAY['chat', 'responses', 'usage', 'admin']
        )
    """,
    "CREATE INDEX api_key_project_id_idx ON api_key (project_id)",
    """
    CREATE FUNCTION api_key_gets_project() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.project_id IS NULL THEN
            SELECT id INTO NEW.project_id
            FROM project WHERE tenant_id = NEW.tenant_id AND is_default;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'there is no tenant %', NEW.tenant_id USING
                    ERRCODE = 'foreign_key_violation', CONSTRAINT = 'api_key_tenant_id_fkey';
            END IF;
        END IF;
        RETURN NEW;
    END
    $$
    """,
    """
    ALTER TABLE usage_event ADD COLUMN end_user text
        CONSTRAINT usage_event_end_user_check CHECK (char_length(end_user) BETWEEN 1 AND 200)
    """,
    """
    CREATE TRIGGER api_key_project
    BEFORE INSERT ON api_key FOR EACH ROW EXECUTE FUNCTION api_key_gets_project()
    """,
)

_DOWN = (
    "ALTER TABLE usage_event DROP COLUMN end_user",
    "DROP TRIGGER api_key_project ON api_key",
    "DROP FUNCTION api_key_gets_project()",
    # Keys of a kind the version before does not know lose what it cannot hold.
    """
    ALTER TABLE api_key
        DROP CONSTRAINT api_key_scopes_check,
        DROP COLUMN project_id,
        DROP COLUMN allowed_models,
        DROP COLUMN model_aliases,
        DROP COLUMN revoke_at,
        DROP COLUMN last_used_at,
        DROP COLUMN replaces_key_id
    """,
    """
    UPDATE api_key
    SET revoked_at = coalesce(revoked_at, now()), scopes = ARRAY['chat']
    WHERE NOT scopes <@ ARRAY['chat', 'admin']
    """,
    """
    ALTER TABLE api_key ADD CONSTRAINT api_key_scopes_check
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['chat', 'admin'])
    """,
    "DROP TRIGGER tenant_default_project ON tenant",
    "DROP FUNCTION tenant_gets_default_project()",
    "DROP TABLE project",
    "ALTER TABLE tenant DROP COLUMN disabled_at",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
