-- The registry of engines, and what decides how many a model has.

CREATE TABLE engine_replica (
    id            text PRIMARY KEY,
    model         text NOT NULL,
    config_hash   text NOT NULL,
    text_hash     text NOT NULL,
    -- Where gateways of other hosts reach it. Null: only those of its own host use it.
    address       text,
    public_key    text,
    protocol      integer NOT NULL,
    version       text NOT NULL,
    capacity      integer NOT NULL,
    epoch         bigint NOT NULL,
    state         text NOT NULL CHECK (state IN ('loading', 'ready', 'lost')),
    is_drained    boolean NOT NULL DEFAULT false,
    num_running   integer NOT NULL DEFAULT 0,
    num_waiting   integer NOT NULL DEFAULT 0,
    started_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    node          text,
    -- Requests that it began to run since it was started.
    num_admitted  bigint NOT NULL DEFAULT 0,
    queue_time_s  double precision NOT NULL DEFAULT 0,
    -- The epoch that is to end: the engine's host starts it anew.
    restart_epoch bigint,
    CHECK ((address IS NULL) = (public_key IS NULL))
);

-- wanted_at: when a gateway last had a request for the model that no engine could take.
-- controller: who decides about its replicas, until expires_at.
CREATE TABLE model_scaling (
    model        text PRIMARY KEY,
    wanted_at    timestamptz,
    controller   text,
    expires_at   timestamptz,
    num_replicas integer
);
