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
    endpoint          text,
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
-- Single requests are read by time, of one tenant or of all.
CREATE INDEX usage_event_tenant_id_created_at_idx
    ON usage_event (tenant_id, created_at, request_id);
CREATE INDEX usage_event_created_at_idx ON usage_event (created_at, request_id);

-- No row is ever without a place. What lands here came with a strange clock.
CREATE TABLE usage_event_default PARTITION OF usage_event DEFAULT;

-- Makes requests unique, which the partitions' indexes of the ledger cannot. Ids of requests begin
-- with the time (RFC 9562, version 7), so each month of ids is a partition, which is dropped as a
-- whole, and a new row is next to the last one.
CREATE TABLE usage_seen (
    request_id uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    created_at timestamptz NOT NULL
) PARTITION BY RANGE (request_id);

-- Ids that were made in another way. The retention reads all of it, in portions.
CREATE TABLE usage_seen_default PARTITION OF usage_seen DEFAULT;

-- Sums that are not in the tables below yet. The transaction that writes the ledger only adds rows
-- here, so that settlements never wait for each other's sums; usage_roll_up moves them. Whoever
-- reads sums adds these, in the same statement.
CREATE TABLE usage_delta (
    tenant_id         uuid NOT NULL,
    key_id            uuid NOT NULL,
    model             text NOT NULL,
    hour              timestamptz NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micro        bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 5000
);

-- As sum(bigint), but the result is a bigint, too, and so is what it keeps for each group: sums of
-- many groups take a third of the memory and about half of the time.
CREATE AGGREGATE usage_sum(bigint) (
    SFUNC = int8pl, STYPE = bigint, COMBINEFUNC = int8pl, PARALLEL = SAFE
);

-- Sums by key: of an hour, and of a day of UTC.
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
CREATE INDEX usage_rollup_hour_idx ON usage_rollup USING brin (hour)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE usage_daily (
    tenant_id         uuid NOT NULL,
    key_id            uuid NOT NULL,
    model             text NOT NULL,
    day               date NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micro        bigint NOT NULL,
    PRIMARY KEY (tenant_id, day, key_id, model)
) WITH (fillfactor = 70);
CREATE INDEX usage_daily_day_idx ON usage_daily (day);

-- Sums by tenant, of a day of UTC: a third of the rows above, for sums over all tenants.
CREATE TABLE usage_daily_tenant (
    tenant_id         uuid NOT NULL,
    model             text NOT NULL,
    day               date NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micro        bigint NOT NULL,
    PRIMARY KEY (tenant_id, day, model)
) WITH (fillfactor = 70);
CREATE INDEX usage_daily_tenant_day_idx ON usage_daily_tenant (day);
