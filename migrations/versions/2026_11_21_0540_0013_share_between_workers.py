"""What gateway workers share: responses, logs of ended streams, idempotency keys, addresses."""

from __future__ import annotations

from alembic import op

from migrations.isolation import APP, OPERATOR, protect

revision = "0013"
down_revision = "0008"
branch_labels = None
depends_on = None

_TENANT_TABLES = ("response", "ended_stream", "idempotency_key")

_UP = (
    # bytea, not jsonb: texts of models may hold what jsonb refuses, and nothing looks inside.
    """
    CREATE TABLE response (
        tenant_id             uuid NOT NULL
            CONSTRAINT response_tenant_id_fkey REFERENCES tenant (id),
        id                    text NOT NULL,
        status                text NOT NULL,
        body                  bytea NOT NULL,
        input                 bytea NOT NULL,
        previous_response_id  text,
        created_at            timestamptz NOT NULL,
        expires_at            timestamptz NOT NULL,
        size                  integer NOT NULL
            GENERATED ALWAYS AS (octet_length(body) + octet_length(input)) STORED,
        CONSTRAINT response_pkey PRIMARY KEY (tenant_id, id)
    )
    """,
    "CREATE INDEX response_tenant_id_created_at_idx ON response (tenant_id, created_at)",
    "CREATE INDEX response_expires_at_idx ON response (expires_at)",
    """
    CREATE TABLE ended_stream (
        tenant_id    uuid NOT NULL
            CONSTRAINT ended_stream_tenant_id_fkey REFERENCES tenant (id),
        id           text NOT NULL,
        kind         text NOT NULL,
        num_dropped  integer NOT NULL,
        items        bytea NOT NULL,
        ended_at     timestamptz NOT NULL DEFAULT now(),
        expires_at   timestamptz NOT NULL,
        size         integer NOT NULL GENERATED ALWAYS AS (octet_length(items)) STORED,
        CONSTRAINT ended_stream_pkey PRIMARY KEY (tenant_id, id)
    )
    """,
    # Packed already: the server need not try.
    "ALTER TABLE ended_stream ALTER COLUMN items SET STORAGE EXTERNAL",
    "CREATE INDEX ended_stream_tenant_id_ended_at_idx ON ended_stream (tenant_id, ended_at)",
    "CREATE INDEX ended_stream_expires_at_idx ON ended_stream (expires_at)",
    """
    CREATE TABLE idempotency_key (
        tenant_id   uuid NOT NULL
            CONSTRAINT idempotency_key_tenant_id_fkey REFERENCES tenant (id),
        key_hash    bytea NOT NULL,
        body_hash   bytea NOT NULL,
        answer_id   text NOT NULL,
        created_at  timestamptz NOT NULL DEFAULT now(),
        expires_at  timestamptz NOT NULL,
        CONSTRAINT idempotency_key_pkey PRIMARY KEY (tenant_id, key_hash)
    )
    """,
    """
    CREATE INDEX idempotency_key_tenant_id_created_at_idx
    ON idempotency_key (tenant_id, created_at)
    """,
    "CREATE INDEX idempotency_key_expires_at_idx ON idempotency_key (expires_at)",
    # Written again every few seconds: after a crash of the server that is soon enough.
    """
    CREATE UNLOGGED TABLE gateway_worker (
        id          text CONSTRAINT gateway_worker_pkey PRIMARY KEY,
        address     text NOT NULL,
        expires_at  timestamptz NOT NULL
    )
    """,
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON gateway_worker TO {APP}, {OPERATOR}",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)
    for table in _TENANT_TABLES:
        for statement in protect(table):
            op.execute(statement)


def downgrade() -> None:
    for table in ("gateway_worker", *reversed(_TENANT_TABLES)):
        op.execute(f"DROP TABLE {table}")
