"""Webhooks, their outbox, and which alerts were given."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE webhook (
            id               uuid PRIMARY KEY,
            tenant_id        uuid CONSTRAINT webhook_tenant_id_fkey REFERENCES tenant (id),
            url              text NOT NULL CHECK (char_length(url) BETWEEN 1 AND 2048),
            events           text[] NOT NULL,
            secret_version   integer NOT NULL DEFAULT 1,
            old_secret_until timestamptz,
            created_at       timestamptz NOT NULL DEFAULT now(),
            disabled_at      timestamptz,
            leased_until     timestamptz NOT NULL DEFAULT '-infinity'
        );
        COMMENT ON COLUMN webhook.tenant_id IS 'null: the deployment''s, for events of all tenants';
        COMMENT ON COLUMN webhook.events IS 'the types that it gets; empty: all';
        COMMENT ON COLUMN webhook.leased_until IS
            'until then one worker sends its deliveries, one after the other';
        CREATE INDEX webhook_tenant_id_idx ON webhook (tenant_id);

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
        COMMENT ON TABLE webhook_delivery IS
            'the outbox: written in the transaction of what it reports, sent after it';
        CREATE INDEX webhook_delivery_due_at_idx ON webhook_delivery (due_at)
            WHERE state = 'pending';
        CREATE INDEX webhook_delivery_ended_at_idx ON webhook_delivery (ended_at)
            WHERE ended_at IS NOT NULL;

        ALTER TABLE limit_state
            ADD COLUMN reported_month date NOT NULL DEFAULT '-infinity',
            ADD COLUMN reported_tokens smallint NOT NULL DEFAULT 0,
            ADD COLUMN reported_cost smallint NOT NULL DEFAULT 0;
        COMMENT ON COLUMN limit_state.reported_tokens IS
            'the highest threshold, in percent, that an event of reported_month has told';
        ALTER TABLE api_key ADD COLUMN expiry_reported smallint;
        COMMENT ON COLUMN api_key.expiry_reported IS
            'how many days before its end the last event of it was';
        CREATE INDEX api_key_expires_at_idx ON api_key (expires_at)
            WHERE expires_at IS NOT NULL AND revoked_at IS NULL;
        """,
    )
    source.replace_functions(bind)
    source.execute(
        bind,
        """
        SELECT sluice_protect('webhook');
        SELECT sluice_protect('webhook_delivery');
        CREATE TRIGGER webhook_audit
            AFTER INSERT OR DELETE OR UPDATE OF url, events, secret_version, disabled_at ON webhook
            FOR EACH ROW EXECUTE FUNCTION audit_change('webhook');
        CREATE TRIGGER limit_policy_reported
            AFTER UPDATE OF monthly_tokens, monthly_cost_micro ON limit_policy
            FOR EACH ROW EXECUTE FUNCTION limit_reported();
        CREATE TRIGGER engine_replica_report AFTER UPDATE OF state, epoch ON engine_replica
            FOR EACH ROW EXECUTE FUNCTION engine_report();
        """,
    )
