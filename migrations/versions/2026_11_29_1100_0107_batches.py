"""Batches and their lines."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE batch (
            tenant_id      uuid NOT NULL CONSTRAINT batch_tenant_id_fkey
                REFERENCES tenant (id) ON DELETE CASCADE,
            id             text NOT NULL COLLATE "C",
            public_id      text NOT NULL,
            endpoint       text NOT NULL,
            input_file_id  text NOT NULL COLLATE "C",
            "window"       text NOT NULL,
            metadata       bytea NOT NULL,
            outputs_last   interval NOT NULL,
            status         text NOT NULL DEFAULT 'validating',
            ends_as        text NOT NULL DEFAULT 'completed',
            errors         bytea NOT NULL DEFAULT '[]',
            output_file_id text,
            error_file_id  text,
            num_total      integer NOT NULL DEFAULT 0,
            num_completed  integer NOT NULL DEFAULT 0,
            num_failed     integer NOT NULL DEFAULT 0,
            created_at     timestamptz NOT NULL DEFAULT now(),
            expires_at     timestamptz NOT NULL,
            in_progress_at timestamptz,
            finalizing_at  timestamptz,
            cancelling_at  timestamptz,
            ended_at       timestamptz,
            attempts       integer NOT NULL DEFAULT 0,
            free_at        timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (tenant_id, id),
            CONSTRAINT batch_status_check CHECK (status IN (
                'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired',
                'cancelling', 'cancelled'
            )),
            CONSTRAINT batch_ended_at_check CHECK ((ended_at IS NOT NULL) = (
                status IN ('failed', 'completed', 'expired', 'cancelled')
            ))
        );
        COMMENT ON COLUMN batch.public_id IS 'of the key that made it, and that its lines run with';
        COMMENT ON COLUMN batch.attempts IS
            'how often a worker took it to validate or end it: only the last one may write';
        COMMENT ON COLUMN batch.free_at IS 'when its lease ends, and another worker may take it';
        CREATE INDEX batch_open_idx ON batch (created_at) WHERE ended_at IS NULL;
        CREATE INDEX batch_ended_at_idx ON batch (ended_at) WHERE ended_at IS NOT NULL;

        CREATE TABLE batch_line (
            tenant_id  uuid NOT NULL,
            batch_id   text NOT NULL COLLATE "C",
            number     integer NOT NULL,
            custom_id  text NOT NULL,
            start      bigint NOT NULL,
            length     integer NOT NULL,
            is_done    boolean NOT NULL DEFAULT false,
            is_failed  boolean NOT NULL DEFAULT false,
            result     bytea,
            request_id uuid,
            owner      uuid,
            attempts   integer NOT NULL DEFAULT 0,
            num_lost   integer NOT NULL DEFAULT 0,
            free_at    timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (tenant_id, batch_id, number),
            FOREIGN KEY (tenant_id, batch_id) REFERENCES batch ON DELETE CASCADE
        ) WITH (fillfactor = 70);
        COMMENT ON COLUMN batch_line.start IS 'where it is in the input file';
        COMMENT ON COLUMN batch_line.owner IS 'the worker that runs it; null: none does';
        COMMENT ON COLUMN batch_line.free_at IS
            'when the lease of its owner ends, or when a refused line may be tried again';
        COMMENT ON COLUMN batch_line.num_lost IS 'how often its owner died with it';
        CREATE INDEX batch_line_open_idx ON batch_line (tenant_id, batch_id, number)
            WHERE NOT is_done;
        CREATE INDEX batch_line_running_idx ON batch_line (tenant_id, batch_id)
            WHERE NOT is_done AND owner IS NOT NULL;
        CREATE INDEX batch_line_request_id_idx ON batch_line (request_id)
            WHERE request_id IS NOT NULL;
        """,
    )
    source.replace_functions(bind)
    for table in ("batch", "batch_line"):
        op.execute(f"SELECT sluice_protect('{table}')")
