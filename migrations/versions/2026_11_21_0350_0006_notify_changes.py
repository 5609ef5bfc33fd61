"""Tell every worker when a key, a tenant or a policy changes, so that its cache forgets it.

Only what an administrator changes is told: a notification takes a lock of the whole server at
commit, so nothing that each request does may cause one.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE FUNCTION notify_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes', 'key ' || NEW.public_id);
        RETURN NULL;
    END
    $$
    """,
    # A new key too: a worker may remember that there is none.
    """
    CREATE TRIGGER api_key_notify AFTER INSERT OR UPDATE OF
        key_hash, name, scopes, project_id, allowed_models, model_aliases, expires_at, revoked_at,
        revoke_at
    ON api_key FOR EACH ROW EXECUTE FUNCTION notify_key_change()
    """,
    """
    CREATE FUNCTION notify_tenant_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes',
            'tenant ' || (to_jsonb(NEW) ->> CASE TG_TABLE_NAME WHEN 'tenant' THEN 'id'
                ELSE 'tenant_id' END));
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER tenant_notify AFTER UPDATE ON tenant
    FOR EACH ROW EXECUTE FUNCTION notify_tenant_change()
    """,
    """
    CREATE TRIGGER limit_policy_notify AFTER INSERT OR UPDATE ON limit_policy
    FOR EACH ROW EXECUTE FUNCTION notify_tenant_change()
    """,
)

_DOWN = (
    "DROP TRIGGER limit_policy_notify ON limit_policy",
    "DROP TRIGGER tenant_notify ON tenant",
    "DROP FUNCTION notify_tenant_change()",
    "DROP TRIGGER api_key_notify ON api_key",
    "DROP FUNCTION notify_key_change()",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
