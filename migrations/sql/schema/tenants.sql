-- Tenants, their projects, and the API keys of projects.

CREATE TABLE tenant (
    id          uuid PRIMARY KEY,
    -- By code point, which is the order of lists whatever the database's collation.
    name        text NOT NULL COLLATE "C" CONSTRAINT tenant_name_key UNIQUE,
    weight      double precision NOT NULL DEFAULT 1,
    priority    smallint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    disabled_at timestamptz,
    -- For how many days after its last use a conversation is kept; null: as the settings say.
    conversation_days integer,
    -- Since then only the ledger and the audit log know the tenant, by its id.
    deleted_at  timestamptz,
    -- When what a deleted tenant has stored is deleted next; null: nothing of it is left.
    purge_at    timestamptz,
    CONSTRAINT tenant_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT tenant_conversation_days_check CHECK (conversation_days BETWEEN 0 AND 36500),
    CONSTRAINT tenant_weight_check CHECK (weight > 0 AND weight < 'Infinity')
);

CREATE TABLE project (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id  uuid NOT NULL CONSTRAINT project_tenant_id_fkey REFERENCES tenant (id),
    name       text NOT NULL COLLATE "C",
    is_default boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT project_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT project_tenant_id_name_key UNIQUE (tenant_id, name),
    -- So that a key can name a project together with its tenant.
    CONSTRAINT project_tenant_id_id_key UNIQUE (tenant_id, id)
);
CREATE UNIQUE INDEX project_is_default_key ON project (tenant_id) WHERE is_default;

CREATE TABLE api_key (
    id              uuid PRIMARY KEY,
    tenant_id       uuid NOT NULL CONSTRAINT api_key_tenant_id_fkey REFERENCES tenant (id),
    project_id      uuid NOT NULL,
    public_id       text NOT NULL COLLATE "C" CONSTRAINT api_key_public_id_key UNIQUE,
    key_hash        bytea NOT NULL,
    name            text NOT NULL,
    scopes          text[] NOT NULL,
    allowed_models  text[] NOT NULL DEFAULT '{}',
    model_aliases   jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    revoke_at       timestamptz,
    last_used_at    timestamptz,
    replaces_key_id uuid CONSTRAINT api_key_replaces_key_id_fkey REFERENCES api_key (id),
    -- How many days before its end the last event of it was.
    expiry_reported smallint,
    -- All keys of a user of a tenant find the same conversations.
    user_name       text,
    CONSTRAINT api_key_project_id_fkey
        FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
    -- So that a ledger row can name a key together with its tenant.
    CONSTRAINT api_key_tenant_id_id_key UNIQUE (tenant_id, id),
    CONSTRAINT api_key_key_hash_check CHECK (octet_length(key_hash) = 32),
    CONSTRAINT api_key_model_aliases_check CHECK (jsonb_typeof(model_aliases) = 'object'),
    CONSTRAINT api_key_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT api_key_user_name_check CHECK (char_length(user_name) BETWEEN 1 AND 200),
    CONSTRAINT api_key_public_id_check CHECK (public_id ~ '^[0-9A-Za-z]{12}$'),
    CONSTRAINT api_key_scopes_check CHECK (
        cardinality(scopes) > 0 AND scopes <@ ARRAY[
            'chat', 'responses', 'usage', 'billing', 'view', 'admin', 'owner'
        ]
    )
) WITH (fillfactor = 70);  -- Last uses are written within the page, without touching an index.
CREATE INDEX api_key_project_id_idx ON api_key (project_id);
CREATE INDEX api_key_user_name_idx ON api_key (tenant_id, user_name)
    WHERE user_name IS NOT NULL;
CREATE INDEX api_key_expires_at_idx ON api_key (expires_at)
    WHERE expires_at IS NOT NULL AND revoked_at IS NULL;
