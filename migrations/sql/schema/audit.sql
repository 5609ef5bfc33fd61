-- Who changed what. Rows are only ever added.

CREATE TABLE audit_log (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id uuid NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text NOT NULL,
    action    text NOT NULL,
    object_id text NOT NULL,
    before    jsonb,
    after     jsonb
);
CREATE INDEX audit_log_tenant_id_id_idx ON audit_log (tenant_id, id);
