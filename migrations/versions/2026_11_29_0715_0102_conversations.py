"""Conversations and their items."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE conversation (
            tenant_id     uuid NOT NULL
                CONSTRAINT conversation_tenant_id_fkey REFERENCES tenant (id),
            id            text NOT NULL,
            metadata      bytea NOT NULL,
            created_at    timestamptz NOT NULL DEFAULT now(),
            num_items     integer NOT NULL DEFAULT 0,
            next_position bigint NOT NULL DEFAULT 0,
            size          bigint NOT NULL,
            PRIMARY KEY (tenant_id, id)
        );
        COMMENT ON COLUMN conversation.size IS
            'bytes of the metadata and of all items, with something for each row';
        CREATE TABLE conversation_item (
            tenant_id       uuid NOT NULL,
            conversation_id text NOT NULL,
            position        bigint NOT NULL,
            id              text NOT NULL,
            body            bytea NOT NULL,
            PRIMARY KEY (tenant_id, conversation_id, position),
            CONSTRAINT conversation_item_id_key UNIQUE (tenant_id, conversation_id, id),
            FOREIGN KEY (tenant_id, conversation_id) REFERENCES conversation ON DELETE CASCADE
        );
        """,
    )
    source.replace_functions(bind)
    for table in ("conversation", "conversation_item"):
        op.execute(f"SELECT sluice_protect('{table}')")
