"""The MCP servers that tenants may use."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE mcp_server (
            id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
            tenant_id     uuid NOT NULL
                CONSTRAINT mcp_server_tenant_id_fkey REFERENCES tenant (id),
            url           text NOT NULL,
            allow_private boolean NOT NULL,
            created_at    timestamptz NOT NULL DEFAULT now(),
            UNIQUE (tenant_id, url)
        );
        """,
    )
    source.replace_functions(bind)
    op.execute("SELECT sluice_protect('mcp_server')")
    op.execute(
        "CREATE TRIGGER mcp_server_audit AFTER INSERT OR UPDATE OR DELETE ON mcp_server "
        "FOR EACH ROW EXECUTE FUNCTION audit_change('mcp_server')"
    )
