"""The registry of engines."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    source.execute(
        bind,
        """
        CREATE TABLE engine_replica (
            id          text PRIMARY KEY,
            model       text NOT NULL,
            config_hash text NOT NULL,
            text_hash   text NOT NULL,
            address     text,
            public_key  text,
            protocol    integer NOT NULL,
            version     text NOT NULL,
            capacity    integer NOT NULL,
            epoch       bigint NOT NULL,
            state       text NOT NULL CHECK (state IN ('loading', 'ready', 'lost')),
            is_drained  boolean NOT NULL DEFAULT false,
            num_running integer NOT NULL DEFAULT 0,
            num_waiting integer NOT NULL DEFAULT 0,
            started_at  timestamptz NOT NULL DEFAULT now(),
            expires_at  timestamptz NOT NULL,
            CHECK ((address IS NULL) = (public_key IS NULL))
        );
        COMMENT ON COLUMN engine_replica.address IS
            'where gateways of other hosts reach it; null: only those of its own host use it';
        GRANT SELECT, INSERT, UPDATE, DELETE ON engine_replica TO sluice_app, sluice_operator;
        """,
    )
    source.replace_functions(bind)
    source.execute(
        bind,
        """
        CREATE TRIGGER engine_replica_notify AFTER INSERT OR UPDATE OR DELETE ON engine_replica
            FOR EACH ROW EXECUTE FUNCTION notify_engine_change();
        """,
    )
