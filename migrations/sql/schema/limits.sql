-- Limits of tenants, projects and keys, what is used of them, and what is reserved.

CREATE TABLE limit_policy (
    scope_id            uuid PRIMARY KEY,
    scope_kind          text NOT NULL,
    tenant_id           uuid NOT NULL CONSTRAINT limit_policy_tenant_id_fkey REFERENCES tenant (id),
    requests_per_minute bigint,
    tokens_per_minute   bigint,
    max_concurrent      integer,
    max_queued          integer,
    monthly_tokens      bigint,
    monthly_cost_micro  bigint,
    priority            smallint,
    weight              double precision,
    max_cached_blocks   integer,
    CONSTRAINT limit_policy_scope_kind_check CHECK (scope_kind IN ('tenant', 'project', 'key')),
    CONSTRAINT limit_policy_requests_per_minute_check
        CHECK (requests_per_minute BETWEEN 1 AND 2147483647),
    CONSTRAINT limit_policy_tokens_per_minute_check
        CHECK (tokens_per_minute BETWEEN 1 AND 2147483647),
    CONSTRAINT limit_policy_max_concurrent_check CHECK (max_concurrent >= 1),
    CONSTRAINT limit_policy_max_queued_check CHECK (max_queued >= 0),
    CONSTRAINT limit_policy_monthly_tokens_check
        CHECK (monthly_tokens BETWEEN 0 AND 1000000000000000),
    CONSTRAINT limit_policy_monthly_cost_micro_check
        CHECK (monthly_cost_micro BETWEEN 0 AND 1000000000000000),
    CONSTRAINT limit_policy_weight_check CHECK (weight > 0 AND weight < 'Infinity'),
    CONSTRAINT limit_policy_max_cached_blocks_check CHECK (max_cached_blocks >= 0)
);
CREATE INDEX limit_policy_tenant_id_idx ON limit_policy (tenant_id);

-- requests_used and tokens_used are in 60-millionths of a request or token, so that a rate per
-- minute refills a whole number of them each microsecond. Only columns without an index change, and
-- pages have room, so updates stay within their page.
CREATE TABLE limit_state (
    scope_id         uuid PRIMARY KEY
        CONSTRAINT limit_state_scope_id_fkey REFERENCES limit_policy (scope_id),
    tenant_id        uuid NOT NULL,
    requests_used    bigint NOT NULL DEFAULT 0,
    tokens_used      bigint NOT NULL DEFAULT 0,
    refilled_at      timestamptz NOT NULL DEFAULT '-infinity',
    num_running      integer NOT NULL DEFAULT 0,
    num_queued       integer NOT NULL DEFAULT 0,
    month            date NOT NULL DEFAULT '-infinity',
    month_tokens     bigint NOT NULL DEFAULT 0,
    month_cost_micro bigint NOT NULL DEFAULT 0,
    -- The highest thresholds, in percent, that an event of reported_month has told.
    reported_month   date NOT NULL DEFAULT '-infinity',
    reported_tokens  smallint NOT NULL DEFAULT 0,
    reported_cost    smallint NOT NULL DEFAULT 0,
    CONSTRAINT limit_state_counts_check CHECK (
        requests_used >= 0 AND tokens_used >= 0 AND num_running >= 0 AND num_queued >= 0
        AND month_tokens >= 0 AND month_cost_micro >= 0
    )
) WITH (fillfactor = 50);

-- Who was refused and why, by the hour; kept for 30 days.
CREATE TABLE refusal (
    tenant_id uuid NOT NULL CONSTRAINT refusal_tenant_id_fkey REFERENCES tenant (id),
    hour      timestamptz NOT NULL,
    key_id    uuid NOT NULL,
    code      text NOT NULL,
    times     bigint NOT NULL,
    last_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, hour, key_id, code)
);
CREATE INDEX refusal_hour_idx ON refusal (hour);

-- A lease: what a request that waits or runs has set aside. owner: the worker that renews it.
CREATE TABLE reservation (
    request_id        uuid PRIMARY KEY,
    tenant_id         uuid NOT NULL,
    key_id            uuid NOT NULL,
    scope_ids         uuid[] NOT NULL,
    state             text NOT NULL,
    model             text NOT NULL,
    owner             uuid NOT NULL,
    month             date NOT NULL,
    prompt_tokens     integer NOT NULL,
    completion_tokens integer NOT NULL,
    generated_tokens  integer NOT NULL DEFAULT 0,
    prompt_price      bigint NOT NULL,
    completion_price  bigint NOT NULL,
    created_at        timestamptz NOT NULL,
    expires_at        timestamptz NOT NULL,
    endpoint          text,
    CONSTRAINT reservation_key_id_fkey
        FOREIGN KEY (tenant_id, key_id) REFERENCES api_key (tenant_id, id),
    CONSTRAINT reservation_state_check CHECK (state IN ('queued', 'running')),
    CONSTRAINT reservation_tokens_check CHECK (
        prompt_tokens >= 0 AND completion_tokens >= 0 AND generated_tokens >= 0
    )
) WITH (fillfactor = 70);
CREATE INDEX reservation_tenant_id_state_idx ON reservation (tenant_id, state, created_at);
CREATE INDEX reservation_expires_at_idx ON reservation (expires_at);
