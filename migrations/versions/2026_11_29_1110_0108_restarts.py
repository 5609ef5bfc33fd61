"""Engines that are to be started anew, one after the other."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None


def upgrade() -> None:
    source.execute(
        op.get_bind(),
        """
        ALTER TABLE engine_replica ADD COLUMN restart_epoch bigint;
        COMMENT ON COLUMN engine_replica.restart_epoch IS
            'the epoch that is to end: the host of the engine starts it anew';
        """,
    )
