"""What decides how many engines a model has: their load, and who asks for more."""

from __future__ import annotations

from alembic import op

from migrations import source

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    # Engines of the version before call the function without the last three, which have defaults.
    source.execute(
        bind,
        """
        ALTER TABLE engine_replica
            ADD COLUMN node text,
            ADD COLUMN num_admitted bigint NOT NULL DEFAULT 0,
            ADD COLUMN queue_time_s double precision NOT NULL DEFAULT 0;
        COMMENT ON COLUMN engine_replica.num_admitted IS
            'requests that it began to run since it was started';
        DROP FUNCTION IF EXISTS engine_register(text, text, text, text, text, text, integer, text,
            integer, bigint, text, integer, integer, interval);
        CREATE TABLE model_scaling (
            model        text PRIMARY KEY,
            wanted_at    timestamptz,
            controller   text,
            expires_at   timestamptz,
            num_replicas integer
        );
        COMMENT ON COLUMN model_scaling.wanted_at IS
            'when a gateway last had a request for the model that no engine could take';
        COMMENT ON COLUMN model_scaling.controller IS
            'who decides about its replicas, until expires_at';
        GRANT SELECT, INSERT, UPDATE ON model_scaling TO sluice_app, sluice_operator;
        """,
    )
    source.replace_functions(bind)
