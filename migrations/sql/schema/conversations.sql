-- Conversations and their items, stored responses, and stored chats.

CREATE TABLE conversation (
    tenant_id     uuid NOT NULL CONSTRAINT conversation_tenant_id_fkey REFERENCES tenant (id),
    id            text NOT NULL,
    metadata      bytea NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    num_items     integer NOT NULL DEFAULT 0,
    next_position bigint NOT NULL DEFAULT 0,
    -- Bytes of the metadata and of all items, with something for each row.
    size          bigint NOT NULL,
    -- The key that has made it. A list has those of one key, the last used first.
    key_id        uuid,
    used_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX conversation_key_id_used_at_idx
    ON conversation (tenant_id, key_id, used_at DESC, id DESC);
CREATE INDEX conversation_tenant_id_used_at_idx ON conversation (tenant_id, used_at);

CREATE TABLE conversation_item (
    tenant_id       uuid NOT NULL,
    conversation_id text NOT NULL,
    position        bigint NOT NULL,
    id              text NOT NULL,
    body            bytea NOT NULL,
    PRIMARY KEY (tenant_id, conversation_id, position),
    CONSTRAINT conversation_item_id_key UNIQUE (tenant_id, conversation_id, id),
    FOREIGN KEY (tenant_id, conversation_id) REFERENCES conversation ON DELETE CASCADE
);

-- size: the sum of conversation.size, kept by a trigger.
CREATE TABLE conversation_use (
    tenant_id uuid PRIMARY KEY CONSTRAINT conversation_use_tenant_id_fkey REFERENCES tenant (id),
    size      bigint NOT NULL
);

-- body and input are bytea, not jsonb: texts of models may hold what jsonb refuses, and nothing
-- looks inside.
CREATE TABLE response (
    tenant_id            uuid NOT NULL CONSTRAINT response_tenant_id_fkey REFERENCES tenant (id),
    id                   text NOT NULL,
    status               text NOT NULL,
    body                 bytea NOT NULL,
    input                bytea NOT NULL,
    previous_response_id text,
    created_at           timestamptz NOT NULL,
    expires_at           timestamptz NOT NULL,
    size                 integer NOT NULL
        GENERATED ALWAYS AS (octet_length(body) + octet_length(input)) STORED,
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX response_tenant_id_created_at_idx ON response (tenant_id, created_at);
CREATE INDEX response_expires_at_idx ON response (expires_at);

CREATE TABLE chat_completion (
    tenant_id  uuid NOT NULL CONSTRAINT chat_completion_tenant_id_fkey REFERENCES tenant (id),
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
