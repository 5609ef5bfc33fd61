-- What the functions take and return as rows.

-- A reservation's answer. state: running, queued or refused. The windows (limit_*, remaining_*,
-- reset_*) are those of the scope with the least left.
CREATE TYPE quota_answer AS (
    state              text,
    completion_tokens  bigint,
    refused_by         text,
    scope_kind         text,
    wait_us            bigint,
    limit_requests     bigint,
    remaining_requests bigint,
    reset_requests_us  bigint,
    limit_tokens       bigint,
    remaining_tokens   bigint,
    reset_tokens_us    bigint
);

-- One request to reserve for. Prices are in millionths of the currency per million tokens.
CREATE TYPE quota_asked AS (
    request_id        uuid,
    tenant_id         uuid,
    project_id        uuid,
    key_id            uuid,
    model             text,
    prompt_tokens     bigint,
    completion_tokens bigint,
    prompt_price      bigint,
    completion_price  bigint,
    owner             uuid,
    lease             interval,
    endpoint          text
);

-- One running request that asks for more tokens.
CREATE TYPE quota_more AS (
    request_id uuid,
    tenant_id  uuid,
    tokens     bigint,
    generated  integer
);
