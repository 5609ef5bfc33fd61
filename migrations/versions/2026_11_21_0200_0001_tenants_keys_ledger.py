"""Tenants, their API keys and the usage ledger.

The ledger is append-only and will be partitioned by ``created_at``: nothing refers to it, its
indexes lead with the tenant, and what makes a request unique is one column.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE tenant (
        id          uuid PRIMARY KEY,
        name        text NOT NULL CONSTRAINT tenant_name_key UNIQUE,
        weight      double precision NOT NULL DEFAULT 1,
        priority    smallint NOT NULL DEFAULT 0,
        created_at  timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT tenant_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
        -- NaN is greater than everything in PostgreSQL, so this refuses it too.
        CONSTRAINT tenant_weight_check CHECK (weight > 0 AND weight < 'Infinity')
    )
    """,
    """
    CREATE TABLE api_key (
        id          uuid PRIMARY KEY,
        tenant_id   uuid NOT NULL CONSTRAINT api_key_tenant_id_fkey REFERENCES tenant (id),
        public_id   text COLLATE "C" NOT NULL CONSTRAINT api_key_public_id_key UNIQUE,
        key_hash    bytea NOT NULL,
        name        text NOT NULL,
        scopes      text[] NOT NULL,
        created_at  timestamptz NOT NULL DEFAULT now(),
        expires_at  timestamptz,
        revoked_at  timestamptz,
        CONSTRAINT api_key_public_id_check CHECK (public_id ~ '^[0-9A-Za-z]{12}$'),
        CONSTRAINT api_key_key_hash_check CHECK (octet_length(key_hash) = 32),
        CONSTRAINT api_key_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
        CONSTRAINT api_key_scopes_check
            CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['chat', 'admin']),
        -- So that a ledger row can name a key together with its tenant.
        CONSTRAINT api_key_tenant_id_id_key UNIQUE (tenant_id, id)
    )
    """,
    """
    CREATE TABLE usage_event (
        request_id         uuid CONSTRAINT usage_event_pkey PRIMARY KEY,
        tenant_id          uuid NOT NULL,
        key_id             uuid NOT NULL,
        model              text NOT NULL,
        status             text NOT NULL,
        prompt_tokens      integer NOT NULL,
        cached_tokens      integer NOT NULL,
        completion_tokens  integer NOT NULL,
        created_at         timestamptz NOT NULL,
        CONSTRAINT usage_event_key_id_fkey
            FOREIGN KEY (tenant_id, key_id) REFERENCES api_key (tenant_id, id),
        CONSTRAINT usage_event_model_check CHECK (char_length(model) BETWEEN 1 AND 200),
        CONSTRAINT usage_event_status_check CHECK (
            status IN ('stop', 'length', 'tool_calls', 'cancelled', 'disconnected', 'error')
        ),
        CONSTRAINT usage_event_prompt_tokens_check CHECK (prompt_tokens >= 0),
        CONSTRAINT usage_event_cached_tokens_check
            CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
        CONSTRAINT usage_event_completion_tokens_check CHECK (completion_tokens >= 0)
    )
    """,
    "CREATE INDEX usage_event_tenant_id_created_at_idx ON usage_event (tenant_id, created_at)",
    """
    CREATE FUNCTION usage_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'usage_event is append-only' USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    """
    CREATE TRIGGER usage_event_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION usage_event_is_append_only()
    """,
)

_DOWN = (
    "DROP TABLE usage_event",
    "DROP FUNCTION usage_event_is_append_only()",
    "DROP TABLE api_key",
    "DROP TABLE tenant",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
