"""The sum of what each tenant's conversations take."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE conversation_use (
            tenant_id uuid PRIMARY KEY
                CONSTRAINT conversation_use_tenant_id_fkey REFERENCES tenant (id),
            size      bigint NOT NULL
        );
        COMMENT ON COLUMN conversation_use.size IS 'the sum of conversation.size';
        """,
    )
    source.replace_functions(bind)
    source.execute(
        bind,
        """
        CREATE TRIGGER conversation_count AFTER INSERT OR UPDATE OF size OR DELETE ON conversation
            FOR EACH ROW EXECUTE FUNCTION conversation_count();
        ALTER TABLE conversation NO FORCE ROW LEVEL SECURITY;
        INSERT INTO conversation_use (tenant_id, size)
        SELECT tenant_id, sum(size) FROM conversation GROUP BY tenant_id;
        ALTER TABLE conversation FORCE ROW LEVEL SECURITY;
        """,
    )
    op.execute("SELECT sluice_protect('conversation_use')")
