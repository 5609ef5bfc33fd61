-- What workers share: ended streams, idempotency keys, and where workers are reached.

CREATE TABLE ended_stream (
    tenant_id   uuid NOT NULL CONSTRAINT ended_stream_tenant_id_fkey REFERENCES tenant (id),
    id          text NOT NULL,
    kind        text NOT NULL,
    num_dropped integer NOT NULL,
    items       bytea NOT NULL,
    ended_at    timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    size        integer NOT NULL GENERATED ALWAYS AS (octet_length(items)) STORED,
    PRIMARY KEY (tenant_id, id)
);
-- The items are packed already, so the server need not try.
ALTER TABLE ended_stream ALTER COLUMN items SET STORAGE EXTERNAL;
CREATE INDEX ended_stream_tenant_id_ended_at_idx ON ended_stream (tenant_id, ended_at);
CREATE INDEX ended_stream_expires_at_idx ON ended_stream (expires_at);

CREATE TABLE idempotency_key (
    tenant_id  uuid NOT NULL CONSTRAINT idempotency_key_tenant_id_fkey REFERENCES tenant (id),
    key_hash   bytea NOT NULL,
    body_hash  bytea NOT NULL,
    answer_id  text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
);
CREATE INDEX idempotency_key_tenant_id_created_at_idx ON idempotency_key (tenant_id, created_at);
CREATE INDEX idempotency_key_expires_at_idx ON idempotency_key (expires_at);

CREATE UNLOGGED TABLE gateway_worker (
    id         text PRIMARY KEY,
    address    text NOT NULL,
    expires_at timestamptz NOT NULL
);
