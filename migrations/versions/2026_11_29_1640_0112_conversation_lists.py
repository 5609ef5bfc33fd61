"""Whose a conversation is and when it was last used, for lists of them."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None


def upgrade() -> None:
    source.execute(
        op.get_bind(),
        """
        ALTER TABLE conversation
            ADD COLUMN key_id uuid,
            ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();
        COMMENT ON COLUMN conversation.key_id IS
            'the key that has made it; none in those of before 0112, which no list has';
        CREATE INDEX conversation_key_id_used_at_idx
            ON conversation (tenant_id, key_id, used_at DESC, id DESC);
        """,
    )
