"""Adapters (LoRA) that tenants own, and are shown to nobody else.

A key's row is looked up together with its tenant's adapters, and forgotten when they change: so
what a tenant may ask for needs no query of its own. Engines forget an adapter that is deleted.
"""

from __future__ import annotations

from alembic import op

from migrations.isolation import protect

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE adapter (
        id          uuid CONSTRAINT adapter_pkey PRIMARY KEY,
        tenant_id   uuid NOT NULL CONSTRAINT adapter_tenant_id_fkey REFERENCES tenant (id),
        name        text NOT NULL,
        parent      text NOT NULL,
        path        text NOT NULL,
        base_model  text,
        rank        integer NOT NULL CONSTRAINT adapter_rank_check CHECK (rank > 0),
        digest      text NOT NULL,
        created_at  timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT adapter_tenant_id_name_key UNIQUE (tenant_id, name)
    )
    """,
    *protect("adapter"),
    """
    CREATE TRIGGER adapter_audit AFTER INSERT OR UPDATE OR DELETE ON adapter
    FOR EACH ROW EXECUTE FUNCTION audit_change('adapter')
    """,
    """
    CREATE FUNCTION notify_adapter_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes', 'tenant ' || coalesce(NEW.tenant_id, OLD.tenant_id));
        IF TG_OP = 'DELETE' THEN
            PERFORM pg_notify('sluice_changes', 'adapter ' || OLD.id);
        END IF;
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER adapter_notify AFTER INSERT OR UPDATE OR DELETE ON adapter
    FOR EACH ROW EXECUTE FUNCTION notify_adapter_change()
    """,
    # Enters the tenant, for a statement that learns only by itself which one it is.
    """
    CREATE FUNCTION adapters_of(p_tenant_id uuid)
    RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM sluice_enter(p_tenant_id);
        RETURN (
            SELECT jsonb_agg(to_jsonb(a) ORDER BY a.name COLLATE "C")
            FROM adapter AS a WHERE a.tenant_id = p_tenant_id
        );
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION adapters_of(uuid)",
    "DROP TABLE adapter",
    "DROP FUNCTION notify_adapter_change()",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
