-- Webhooks, and the events that they are sent.

CREATE TABLE webhook (
    id               uuid PRIMARY KEY,
    -- Null: the deployment's, for events of all tenants.
    tenant_id        uuid CONSTRAINT webhook_tenant_id_fkey REFERENCES tenant (id),
    url              text NOT NULL CHECK (char_length(url) BETWEEN 1 AND 2048),
    -- The types that it gets; empty: all.
    events           text[] NOT NULL,
    secret_version   integer NOT NULL DEFAULT 1,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    disabled_at      timestamptz,
    -- Until then one worker sends its deliveries, one after the other.
    leased_until     timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE INDEX webhook_tenant_id_idx ON webhook (tenant_id);

-- The outbox: written in the transaction of what it reports, sent after it.
CREATE TABLE webhook_delivery (
    event_id     uuid NOT NULL,
    webhook_id   uuid NOT NULL REFERENCES webhook (id) ON DELETE CASCADE,
    tenant_id    uuid,
    type         text NOT NULL,
    body         text NOT NULL,
    state        text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'delivered', 'failed')),
    num_attempts integer NOT NULL DEFAULT 0,
    last_answer  text,
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    PRIMARY KEY (webhook_id, event_id)
);
CREATE INDEX webhook_delivery_due_at_idx ON webhook_delivery (due_at)
    WHERE state = 'pending';
CREATE INDEX webhook_delivery_ended_at_idx ON webhook_delivery (ended_at)
    WHERE ended_at IS NOT NULL;
