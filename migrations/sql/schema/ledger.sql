-- The ledger: one row per request, for ever or for as many months as the settings say, and sums.

CREATE TABLE usage_event (
    request_id        uuid NOT NULL,
    tenant_id         uuid NOT NULL,
    key_id            uuid NOT NULL,
    model             text NOT NULL,
    status            text NOT NULL,
    prompt_tokens     integer NOT NULL,
    cached_tokens     integer NOT NULL,
    completion_tokens integer NOT NULL,
    created_at        timestamptz NOT NULL,
    end_user          text,
    cost_micro        bigint NOT NULL DEFAULT 0,
    CONSTRAINT usage_event_key_id_fkey
        FOREIGN KEY (tenant_id, key_id) REFERENCES api_key (tenant_id, id),
    CONSTRAINT usage_event_model_check CHECK (char_length(model) BETWEEN 1 AND 200),
    CONSTRAINT usage_event_status_check CHECK (
        status IN ('stop', 'length', 'tool_calls', 'cancelled', 'disconnected', 'error')
    ),
    CONSTRAINT usage_event_prompt_tokens_check CHECK (prompt_tokens >= 0),
    CONSTRAINT usage_event_cached_tokens_check CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
    CONSTRAINT usage_event_completion_tokens_check CHECK (completion_tokens >= 0),
    CONSTRAINT usage_event_cost_micro_check CHECK (cost_micro >= 0),
    CONSTRAINT usage_event_end_user_check CHECK (char_length(end_user) BETWEEN 1 AND 200)
) PARTITION BY RANGE (created_at);
CREATE INDEX usage_event_tenant_id_created_at_idx ON usage_event (tenant_id, created_at);

-- No row is ever without a place. What lands here came with a strange clock.
CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT;

-- Makes requests unique, which the partitions' indexes cannot. Rows come in the order of time, so a
-- summary of each range of pages is index enough for the retention.
CREATE TABLE usage_seen (
    request_id uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX usage_seen_created_at_idx ON usage_seen USING brin (created_at);

-- Sums by the hour, kept by the transaction that writes the ledger.
CREATE TABLE usage_rollup (
    tenant_id         uuid NOT NULL,
    key_id            uuid NOT NULL,
    model             text NOT NULL,
    hour              timestamptz NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micro        bigint NOT NULL,
    PRIMARY KEY (tenant_id, hour, key_id, model)
) WITH (fillfactor = 70);
