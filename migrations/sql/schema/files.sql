-- Files of tenants, and batches over them.

CREATE TABLE file (
    tenant_id   uuid NOT NULL CONSTRAINT file_tenant_id_fkey
        REFERENCES tenant (id) ON DELETE CASCADE,
    -- Begins with the time, so that lists are in this order.
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

CREATE TABLE batch (
    tenant_id      uuid NOT NULL CONSTRAINT batch_tenant_id_fkey
        REFERENCES tenant (id) ON DELETE CASCADE,
    id             text NOT NULL COLLATE "C",
    -- Of the key that made it, and that its lines run with.
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
    -- How often a worker took it to validate or end it: only the last one may write.
    attempts       integer NOT NULL DEFAULT 0,
    -- When its lease ends, and another worker may take it.
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
CREATE INDEX batch_open_idx ON batch (created_at) WHERE ended_at IS NULL;
CREATE INDEX batch_ended_at_idx ON batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batch_line (
    tenant_id  uuid NOT NULL,
    batch_id   text NOT NULL COLLATE "C",
    number     integer NOT NULL,
    custom_id  text NOT NULL,
    -- Where it is in the input file.
    start      bigint NOT NULL,
    length     integer NOT NULL,
    is_done    boolean NOT NULL DEFAULT false,
    is_failed  boolean NOT NULL DEFAULT false,
    result     bytea,
    request_id uuid,
    -- The worker that runs it; null: none does.
    owner      uuid,
    attempts   integer NOT NULL DEFAULT 0,
    -- How often its owner died with it.
    num_lost   integer NOT NULL DEFAULT 0,
    -- When the lease of its owner ends, or when a refused line may be tried again.
    free_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, batch_id, number),
    FOREIGN KEY (tenant_id, batch_id) REFERENCES batch ON DELETE CASCADE
) WITH (fillfactor = 70);
CREATE INDEX batch_line_open_idx ON batch_line (tenant_id, batch_id, number)
    WHERE NOT is_done;
CREATE INDEX batch_line_running_idx ON batch_line (tenant_id, batch_id)
    WHERE NOT is_done AND owner IS NOT NULL;
CREATE INDEX batch_line_request_id_idx ON batch_line (request_id)
    WHERE request_id IS NOT NULL;
