"""Files of tenants."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE file (
            tenant_id   uuid NOT NULL CONSTRAINT file_tenant_id_fkey
                REFERENCES tenant (id) ON DELETE CASCADE,
            id          text NOT NULL COLLATE "C",
            filename    text NOT NULL,
            purpose     text NOT NULL,
            size        bigint NOT NULL DEFAULT 0,
            num_chunks  integer NOT NULL DEFAULT 0,
            is_complete boolean NOT NULL DEFAULT false,
            created_at  timestamptz NOT NULL DEFAULT now(),
            expires_at  timestamptz,
            PRIMARY KEY (tenant_id, id)
        );
        COMMENT ON COLUMN file.id IS 'begins with the time, so that lists are in this order';
        CREATE INDEX file_expires_at_idx ON file (expires_at);
        CREATE TABLE file_chunk (
            tenant_id uuid NOT NULL,
            file_id   text NOT NULL COLLATE "C",
            number    integer NOT NULL,
            data      bytea NOT NULL,
            PRIMARY KEY (tenant_id, file_id, number),
            FOREIGN KEY (tenant_id, file_id) REFERENCES file ON DELETE CASCADE
        );
        -- So that parts of a row can be read, and nothing is spent on packing.
        ALTER TABLE file_chunk ALTER COLUMN data SET STORAGE EXTERNAL;
        """,
    )
    source.replace_functions(bind)
    for table in ("file", "file_chunk"):
        op.execute(f"SELECT sluice_protect('{table}')")
