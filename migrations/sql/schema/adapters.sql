-- What only one tenant can use: LoRA adapters, which are models of its own, and MCP servers.

CREATE TABLE adapter (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL CONSTRAINT adapter_tenant_id_fkey REFERENCES tenant (id),
    name       text NOT NULL,
    parent     text NOT NULL,
    path       text NOT NULL,
    base_model text,
    rank       integer NOT NULL CONSTRAINT adapter_rank_check CHECK (rank > 0),
    digest     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT adapter_tenant_id_name_key UNIQUE (tenant_id, name)
);

CREATE TABLE mcp_server (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id     uuid NOT NULL CONSTRAINT mcp_server_tenant_id_fkey REFERENCES tenant (id),
    url           text NOT NULL,
    allow_private boolean NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, url)
);
