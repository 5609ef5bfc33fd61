"""Stored chat completions."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE chat_completion (
            tenant_id  uuid NOT NULL
                CONSTRAINT chat_completion_tenant_id_fkey REFERENCES tenant (id),
            id         text NOT NULL,
            model      text NOT NULL,
            metadata   jsonb NOT NULL,
            body       bytea NOT NULL,
            messages   bytea NOT NULL,
            created_at timestamptz NOT NULL,
            expires_at timestamptz NOT NULL,
            size       integer NOT NULL
                GENERATED ALWAYS AS (octet_length(body) + octet_length(messages)) STORED,
            PRIMARY KEY (tenant_id, id)
        );
        CREATE INDEX chat_completion_tenant_id_created_at_idx
            ON chat_completion (tenant_id, created_at, id);
        CREATE INDEX chat_completion_expires_at_idx ON chat_completion (expires_at);
        """,
    )
    source.replace_functions(bind)
    op.execute("SELECT sluice_protect('chat_completion')")
