"""Runs alembic's commands on the caller's connection, with one transaction for each migration."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
assert connection is not None, "migrations are run through migrations.runner"

context.configure(connection=connection, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
