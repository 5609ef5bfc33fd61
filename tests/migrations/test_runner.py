from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

import migrations
from migrations import revisions as known_revisions
from migrations import source
from tenants import queries
from tenants.errors import InvalidValue, MigrationRefused, SchemaMismatch, StoreUnavailable
from tenants.store import Store
from tests.postgres import execute, fresh_database, owned, with_database

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

FOLDER = Path(migrations.__file__).parent
FIRST_RELEASE = "0116"
SCHEMA_OF_FIRST_RELEASE = "0bad4ce070b28f95"
"""What ``sql/schema`` is, as the first digits of its SHA-256."""
ROWS_OF_THE_RELEASE = (
    "INSERT INTO tenant (id, name) SELECT gen_random_uuid(), n FROM unnest('{a,b}'::text[]) AS n",
    "INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes) "
    "SELECT gen_random_uuid(), id, repeat(name, 12), decode(repeat('00', 32), 'hex'), "
    "name, '{chat,admin}' FROM tenant",
    "SELECT limit_put(id, 'tenant', id, 600, NULL, 5, NULL, NULL, NULL, NULL, NULL, NULL, NULL) "
    "FROM tenant",
    "INSERT INTO usage_event (request_id, tenant_id, key_id, model, status, prompt_tokens, "
    "cached_tokens, completion_tokens, created_at, cost_micro, endpoint) "
    "SELECT gen_random_uuid(), tenant_id, id, 'demo', 'stop', 10, 4, 6, now(), 7, '/v1/responses' "
    "FROM api_key",
    "INSERT INTO usage_delta SELECT tenant_id, key_id, model, date_trunc('hour', created_at), 1, "
    "prompt_tokens, cached_tokens, completion_tokens, cost_micro FROM usage_event",
)
SETTLE_OF_THE_RELEASE = (
    "SELECT quota_settle(ARRAY[gen_random_uuid()], ARRAY[tenant_id], ARRAY[id], '{demo}', "
    "'{stop}', '{10}', '{4}', '{6}', ARRAY[now()], '{NULL}', '{7}', NULL, '{NULL}') FROM api_key"
)
"""How workers of that version call it."""
NEXT_REVISION = """
from alembic import op
from migrations import source

revision, down_revision, branch_labels, depends_on = "9999", {last!r}, None, None


def upgrade():
    bind = op.get_bind()
    source.execute(
        bind,
        "ALTER TABLE usage_event ADD COLUMN region text;"
        "ALTER TABLE api_key ALTER COLUMN scopes DROP NOT NULL;"
        "DROP FUNCTION limit_month(timestamptz);"
    )
    source.replace_functions(bind)
"""
MONTH_OF_THE_NEXT = """CREATE FUNCTION limit_month(p_now timestamptz, p_zone text DEFAULT 'UTC')
RETURNS date
LANGUAGE sql STABLE
AS $$
    SELECT date_trunc('month', p_now, p_zone)::date
$$;
"""
PARTITION = re.compile(r"usage_(event|seen)_(\d{4}_\d\d|default)")


async def schema(dsn: str) -> set[tuple[str, ...]]:
    """Everything of ours in a database: columns, constraints, indexes, triggers, functions."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            """
            SELECT 'column', table_name, column_name, data_type, is_nullable, column_default
            FROM information_schema.columns WHERE table_schema = 'public'
            UNION ALL
            SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '',
                ''
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
            UNION ALL
            SELECT 'index', tablename, indexname, indexdef, '', ''
            FROM pg_indexes WHERE schemaname = 'public'
            UNION ALL
            SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), '', ''
            FROM pg_trigger WHERE NOT tgisinternal
            UNION ALL
            SELECT 'function', proname, prosrc, '', '', ''
            FROM pg_proc WHERE pronamespace = 'public'::regnamespace
            """
        )
    finally:
        await connection.close()
    return {tuple(str(value) for value in row) for row in rows if row[1] != "alembic_version"}


async def rows(dsn: str) -> list[asyncpg.Record]:
    """What ``ROWS_OF_THE_RELEASE`` put in, as far as 0.1.0 knew it."""
    connection = await asyncpg.connect(dsn)
    try:
        found: list[asyncpg.Record] = await connection.fetch(
            "SELECT t.name, k.tenant_id, k.public_id, k.scopes, p.is_default, e.request_id, "
            "e.model, e.status, e.prompt_tokens, e.cached_tokens, e.completion_tokens, "
            "e.created_at, e.endpoint, u.requests, l.max_concurrent FROM tenant t "
            "JOIN api_key k ON k.tenant_id = t.id JOIN project p ON p.id = k.project_id "
            "JOIN usage_event e ON e.key_id = k.id JOIN usage_delta u ON u.key_id = k.id "
            "JOIN limit_policy l ON l.scope_id = t.id ORDER BY 1"
        )
    finally:
        await connection.close()
    return found


def lock_id() -> int:
    from migrations.runner import LOCK_ID

    return LOCK_ID


def revisions() -> ScriptDirectory:
    # Here, as all files of tests are imported before the first test runs.
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


@pytest.mark.pg
@pytest.mark.asyncio
class TestUpgrade:
    async def test_from_nothing_to_head(self, empty_pg_dsn: str) -> None:
        assert await migrations.current(empty_pg_dsn) is None
        assert await schema(empty_pg_dsn) == set()

        await migrations.upgrade(empty_pg_dsn)
        assert await migrations.current(empty_pg_dsn) == migrations.head()
        first = await schema(empty_pg_dsn)
        assert {
            row[1] for row in first if row[0] == "column" and not PARTITION.fullmatch(row[1])
        } >= {
            "audit_log",
            "tenant",
            "project",
            "api_key",
            "usage_event",
            "usage_seen",
            "usage_delta",
            "usage_rollup",
            "usage_daily",
            "usage_daily_tenant",
            "limit_policy",
            "limit_state",
            "reservation",
            "response",
            "conversation",
            "conversation_item",
            "ended_stream",
            "idempotency_key",
            "gateway_worker",
        }

    async def test_a_revision_stands_for_one_schema(self) -> None:
        """A database at a revision has all that it says; else it would pass for migrated."""
        files = sorted((source.FOLDER / "schema").glob("*.sql"))
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == SCHEMA_OF_FIRST_RELEASE, (
            "the schema has changed: change it by a revision; or, while 0.1.0 is not released, "
            "renumber the base revision, here and in tenants/errors.py, too"
        )

    async def test_rows_of_every_release_come_along(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_pg_dsn: str
    ) -> None:
        """Through all revisions since, and one of the test's own that changes tables and a
        function's parameters. Workers of the release go on settling."""
        assert known_revisions.known()[0] == FIRST_RELEASE, "released revisions stay as they are"
        shutil.copytree(FOLDER / "versions", tmp_path / "versions")
        shutil.copy(FOLDER / "env.py", tmp_path)
        (tmp_path / "versions" / "2999_01_01_0000_9999_next.py").write_text(
            NEXT_REVISION.format(last=migrations.head())
        )
        await migrations.upgrade(empty_pg_dsn, FIRST_RELEASE)
        await execute(empty_pg_dsn, *ROWS_OF_THE_RELEASE)
        before = await rows(empty_pg_dsn)
        assert len(before) == 2
        await migrations.upgrade(empty_pg_dsn)
        assert await rows(empty_pg_dsn) == before

        functions = {**source.functions(), "limit_month": MONTH_OF_THE_NEXT}
        monkeypatch.setattr(known_revisions, "FOLDER", tmp_path)
        monkeypatch.setattr(source, "functions", lambda: functions)
        with pytest.raises(SchemaMismatch, match=r"this version needs 9999; run `sluice migrate`"):
            await migrations.check(empty_pg_dsn)
        await migrations.upgrade(empty_pg_dsn)
        await migrations.check(empty_pg_dsn)
        assert await rows(empty_pg_dsn) == before
        await execute(empty_pg_dsn, SETTLE_OF_THE_RELEASE, "SELECT region FROM usage_event")
        assert len(await rows(empty_pg_dsn)) > len(before)

    async def test_a_database_from_before_the_first_release_is_refused(
        self, empty_pg_dsn: str
    ) -> None:
        await migrations.upgrade(empty_pg_dsn)
        await execute(empty_pg_dsn, "UPDATE alembic_version SET version_num = '0020'")
        for refused in (migrations.upgrade, migrations.check):
            with pytest.raises(SchemaMismatch, match=r"made before 0\.1\.0.*a new database"):
                await refused(empty_pg_dsn)
        assert await migrations.current(empty_pg_dsn) == "0020"

    async def test_functions_are_made_as_their_files_say(self, empty_pg_dsn: str) -> None:
        """Whether one was changed or is missing: the server does not start, and migrating mends."""
        await migrations.upgrade(empty_pg_dsn)
        first = await schema(empty_pg_dsn)
        await execute(
            empty_pg_dsn,
            "CREATE OR REPLACE FUNCTION limit_month(p_now timestamptz) RETURNS date "
            "LANGUAGE sql IMMUTABLE AS $$SELECT p_now::date$$",
            "DROP FUNCTION claims_find(bytea[], uuid[])",
        )
        with pytest.raises(
            SchemaMismatch, match=r"function claims_find, limit_month.*`sluice migrate`"
        ):
            await migrations.check(empty_pg_dsn)
        await migrations.upgrade(empty_pg_dsn)
        await migrations.check(empty_pg_dsn)
        assert await schema(empty_pg_dsn) == first

    async def test_the_statements_of_this_version_are_understood(self, empty_pg_dsn: str) -> None:
        await migrations.upgrade(empty_pg_dsn)
        connection = await asyncpg.connect(empty_pg_dsn)
        for query in queries.load().values():
            await connection.prepare(query.sql)
        await connection.close()

    async def test_again_changes_nothing(self, empty_pg_dsn: str) -> None:
        await migrations.upgrade(empty_pg_dsn)
        before = await schema(empty_pg_dsn)
        await execute(empty_pg_dsn, "INSERT INTO tenant VALUES (gen_random_uuid(), 'kept')")
        await migrations.upgrade(empty_pg_dsn)
        assert await schema(empty_pg_dsn) == before
        connection = await asyncpg.connect(empty_pg_dsn)
        assert await connection.fetchval("SELECT name FROM tenant") == "kept"
        await connection.close()

    async def test_many_at_once_take_turns(self, empty_pg_dsn: str) -> None:
        found = await asyncio.gather(*(migrations.upgrade(empty_pg_dsn) for _ in range(5)))
        assert found.count(None) == 1, "the others find the schema there already"
        assert found.count(migrations.head()) == 4
        assert await migrations.current(empty_pg_dsn) == migrations.head()

    async def test_waits_for_the_lock_no_longer_than_told(self, empty_pg_dsn: str) -> None:
        other = await asyncpg.connect(empty_pg_dsn)
        await other.execute(f"SELECT pg_advisory_lock({lock_id()})")
        with pytest.raises(StoreUnavailable, match="another migration has been running"):
            await migrations.upgrade(empty_pg_dsn, lock_timeout_s=0.2)
        assert await migrations.current(empty_pg_dsn) is None
        waiting = asyncio.create_task(migrations.upgrade(empty_pg_dsn, lock_timeout_s=60))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await other.close()
        await waiting
        assert await migrations.current(empty_pg_dsn) == migrations.head()

    async def test_a_login_that_may_not_make_roles_is_told_what_to_ask_for(
        self, empty_pg_dsn: str
    ) -> None:
        async with owned(empty_pg_dsn, may_make_roles=False) as dsn:
            with pytest.raises(MigrationRefused, match="let an administrator run") as caught:
                await migrations.upgrade(dsn)
            asked = re.search(rf"GRANT .* TO {urlsplit(dsn).username}$", str(caught.value))
            assert asked is not None
            await execute(empty_pg_dsn, asked[0])
            await migrations.upgrade(dsn)
            await migrations.check(dsn)

    async def test_a_login_without_rights_is_told_what_it_lacks(self, empty_pg_dsn: str) -> None:
        await migrations.upgrade(empty_pg_dsn)
        async with owned(empty_pg_dsn, may_make_roles=False) as dsn:
            with pytest.raises(MigrationRefused, match="Migrate as the database's owner"):
                await migrations.upgrade(dsn)
            for function in (migrations.current, migrations.check):
                with pytest.raises(
                    StoreUnavailable, match="granted sluice_app and sluice_operator"
                ):
                    await function(dsn)

    async def test_two_owners_on_one_server_who_cannot_read_each_other(
        self, postgres_server: str, empty_pg_dsn: str
    ) -> None:
        """The roles are the server's, so the second owner is told what to ask for. Members of them
        could see every database's rows, but for a right that the owners take away."""
        names = [urlsplit(empty_pg_dsn).path[1:]]
        with contextmanager(fresh_database)(postgres_server, template="template0") as other_dsn:
            names.append(urlsplit(other_dsn).path[1:])
            async with (
                owned(empty_pg_dsn, may_make_roles=False) as one,
                owned(other_dsn, may_make_roles=False) as two,
            ):
                for dsn, name in ((one, names[0]), (two, names[1])):
                    with pytest.raises(MigrationRefused) as caught:
                        await migrations.upgrade(dsn)
                    asked = re.search(r"GRANT .* TO \w+$", str(caught.value))
                    assert asked is not None
                    await execute(empty_pg_dsn, asked[0])
                    await migrations.upgrade(dsn)
                    await execute(dsn, f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
                    store = await Store.connect(dsn)
                    assert [one.name for one in await store.list_tenants()] == []
                    await store.create_tenant(name)
                    assert [one.name for one in await store.list_tenants()] == [name]
                    await store.close()
                for stranger, name in ((one, names[1]), (two, names[0])):
                    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="CONNECT"):
                        await asyncpg.connect(with_database(stranger, name))

    async def test_leaves_no_lock_and_no_connection(self, empty_pg_dsn: str) -> None:
        await migrations.upgrade(empty_pg_dsn)
        connection = await asyncpg.connect(empty_pg_dsn)
        for _ in range(1500):  # the server needs a moment to see the end
            left = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'sluice migrate'"
            )
            if left == 0:
                break
            await asyncio.sleep(0.02)
        assert left == 0
        assert await connection.fetchval(f"SELECT pg_try_advisory_lock({lock_id()})")
        await connection.close()


@pytest.mark.pg
@pytest.mark.asyncio
class TestOtherMigrations:
    """What a migration may do, with migrations of the test's own in place of ours."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "env.py").write_text((FOLDER / "env.py").read_text())
        (tmp_path / "versions").mkdir()
        monkeypatch.setattr(known_revisions, "FOLDER", tmp_path)
        monkeypatch.setattr(source, "functions", dict)
        return tmp_path / "versions"

    def write(self, folder: Path, revision: str, down: str | None, body: str) -> None:
        (folder / f"2026_01_01_0000_{revision}_test.py").write_text(
            f"from alembic import op\nrevision = {revision!r}\ndown_revision = {down!r}\n"
            f"def upgrade():\n{textwrap.indent(body, '    ')}\n"
        )

    async def test_failure_leaves_the_last_whole_one(self, folder: Path, empty_pg_dsn: str) -> None:
        self.write(folder, "a", None, "op.execute('CREATE TABLE one ()')")
        self.write(folder, "b", "a", "op.execute('CREATE TABLE two ()')\nop.execute('SELECT 1/0')")
        with pytest.raises(Exception, match="division by zero"):
            await migrations.upgrade(empty_pg_dsn)
        assert await migrations.current(empty_pg_dsn) == "a"
        await execute(empty_pg_dsn, "SELECT * FROM one", "CREATE TABLE two ()")

    async def test_index_can_be_made_concurrently_while_others_wait(
        self, folder: Path, empty_pg_dsn: str
    ) -> None:
        """Waiting inside pg_advisory_lock would deadlock here."""
        self.write(folder, "a", None, "op.execute('CREATE TABLE one (x int)')")
        self.write(
            folder,
            "b",
            "a",
            "op.execute('SELECT pg_sleep(0.3)')\n"
            "with op.get_context().autocommit_block():\n"
            "    op.execute('CREATE INDEX CONCURRENTLY one_x ON one (x)')",
        )
        async with asyncio.timeout(60):
            await asyncio.gather(*(migrations.upgrade(empty_pg_dsn) for _ in range(3)))
        assert await migrations.current(empty_pg_dsn) == "b"

    async def test_waiting_for_a_busy_table_ends(self, folder: Path, empty_pg_dsn: str) -> None:
        """A migration in the queue for a table stops everybody behind it: it has to give up."""
        await execute(empty_pg_dsn, "CREATE TABLE one (x int)")
        self.write(folder, "a", None, "op.execute('ALTER TABLE one ADD y int')")
        other, third = [await asyncpg.connect(empty_pg_dsn) for _ in range(2)]
        async with other.transaction():
            await other.execute("LOCK TABLE one IN ACCESS SHARE MODE")
            waiting = asyncio.create_task(migrations.upgrade(empty_pg_dsn, lock_timeout_s=0.5))
            while not waiting.done():
                async with asyncio.timeout(20.0):
                    await third.fetch("SELECT * FROM one")
            with pytest.raises(StoreUnavailable, match=r"in use for 0\.5 s .*lock timeout"):
                await waiting
        await other.close()
        await third.close()
        await migrations.upgrade(empty_pg_dsn)

    async def test_a_table_that_becomes_free_is_waited_for(
        self, folder: Path, empty_pg_dsn: str
    ) -> None:
        await execute(empty_pg_dsn, "CREATE TABLE one (x int)")
        self.write(folder, "a", None, "op.execute('CREATE TABLE two ()')")
        self.write(folder, "b", "a", "op.execute('ALTER TABLE one ADD y int')")
        other = await asyncpg.connect(empty_pg_dsn)
        async with other.transaction():
            await other.execute("LOCK TABLE one IN ACCESS SHARE MODE")
            waiting = asyncio.create_task(migrations.upgrade(empty_pg_dsn))
            await asyncio.sleep(0.4)
            assert not waiting.done()
        await waiting
        assert await migrations.current(empty_pg_dsn) == "b"
        await other.close()


@pytest.mark.pg
@pytest.mark.asyncio
class TestCheck:
    async def test_app_is_told_what_to_do(self, empty_pg_dsn: str) -> None:
        with pytest.raises(SchemaMismatch, match=r"no schema yet.*run `sluice migrate`") as caught:
            await migrations.check(empty_pg_dsn)
        assert (caught.value.current, caught.value.expected) == (None, migrations.head())
        await migrations.upgrade(empty_pg_dsn)
        await migrations.check(empty_pg_dsn)

    async def test_database_of_a_newer_version(self, empty_pg_dsn: str) -> None:
        await migrations.upgrade(empty_pg_dsn)
        await execute(empty_pg_dsn, "UPDATE alembic_version SET version_num = 'future'")
        with pytest.raises(SchemaMismatch, match="schema at future") as caught:
            await migrations.check(empty_pg_dsn)
        assert "update Sluice" in str(caught.value)
        with pytest.raises(SchemaMismatch):
            await migrations.upgrade(empty_pg_dsn)


@pytest.mark.asyncio
class TestConnection:
    @pytest.mark.parametrize("dsn", ["", "sqlite://", "postgresql+asyncpg://u:secret@h/d"])
    async def test_bad_dsn(self, dsn: str) -> None:
        for function in (migrations.upgrade, migrations.current, migrations.check):
            with pytest.raises(InvalidValue, match="dsn"):
                await function(dsn)

    async def test_nobody_there(self, tmp_path: Path) -> None:
        for dsn in (
            "postgresql://u:secret@127.0.0.1:1/sluice",
            f"postgresql://u:secret@/sluice?host={tmp_path}",
        ):
            with pytest.raises(StoreUnavailable, match="does not answer") as caught:
                await migrations.upgrade(dsn)
            assert "secret" not in str(caught.value)

    @pytest.mark.pg
    async def test_no_such_database(self, postgres_server: str) -> None:
        with pytest.raises(StoreUnavailable, match='refuses us: database "nope"'):
            await migrations.current(with_database(postgres_server, "nope"))


class TestFiles:
    def test_their_names_tell_what_alembic_reads_in_them(self) -> None:
        assert migrations.head() == revisions().get_current_head()
        history = [script.revision for script in revisions().walk_revisions()][::-1]
        assert known_revisions.known() == history

    def test_to_ask_for_the_revision_costs_no_alembic(self) -> None:
        code = "import sys, migrations; migrations.head(); sys.exit('alembic' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, check=True)

    def test_what_is_not_there_is_named(self) -> None:
        with pytest.raises(AttributeError, match="upgrad"):
            migrations.upgrad  # noqa: B018

    def test_one_line_of_history(self) -> None:
        assert len(revisions().get_heads()) == 1
        assert len(revisions().get_bases()) == 1

    def test_names_sort_by_age_and_say_what_they_do(self) -> None:
        for script in revisions().walk_revisions():
            name = Path(script.path).name
            assert re.fullmatch(
                rf"\d{{4}}_\d\d_\d\d_\d{{4}}_{script.revision}_[a-z0-9_]+\.py", name
            ), name
        by_history = [Path(script.path).name for script in revisions().walk_revisions()][::-1]
        assert by_history == sorted(by_history)

    def test_new_one_is_made_from_the_template(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("env.py", "script.py.mako"):
            (tmp_path / name).write_text((FOLDER / name).read_text())
        (tmp_path / "versions").mkdir()
        monkeypatch.setattr(known_revisions, "FOLDER", tmp_path)
        monkeypatch.setattr(source, "functions", dict)
        for number in ("0001", "0002"):
            path = migrations.create("Add a limit's window")
            assert re.fullmatch(
                rf"\d{{4}}_\d\d_\d\d_\d{{4}}_{number}_add_a_limit_s_window\.py", path.name
            )
            compile(path.read_text(), path, "exec")
            assert migrations.head() == number
