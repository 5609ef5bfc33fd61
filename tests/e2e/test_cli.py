"""``sluice migrate``, ``tenant`` and ``key`` in processes of their own, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from engine.demo import MODEL_DIR
from gateway import secrets
from tenants.authenticator import Authenticator
from tenants.errors import AuthenticationFailed
from tenants.store import Store
from tenants.types import Principal
from tests import forked
from tests.postgres import execute, fresh_database, postgres_server, with_database
from tests.tenants.reserving import ask
from tests.tenants.samples import make_event

__all__ = ["postgres_server"]

pytestmark = pytest.mark.pg

ROOT = Path(__file__).parents[2]


class Folder:
    """A folder with a ``sluice.toml`` that names a database."""

    def __init__(self, root: Path, dsn: str) -> None:
        self.root = root
        self.dsn = dsn
        self.write_settings("sluice.toml", model="m")

    def write_settings(self, name: str, *, model: str) -> None:
        (self.root / name).write_text(
            f'[engine]\nmodel = "{model}"\n[server]\nport = 0\n'
            f'[tenants]\ndsn = "{self.dsn}"\nsecrets_file = "secrets.json"\n'
        )

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.sluice(*arguments, cwd=self.root)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def ok(self, *arguments: str) -> str:
        done = self.sluice(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def complaint(self, *arguments: str) -> str:
        done = self.sluice(*arguments)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    def authenticate(self, key: str) -> Principal:
        """What a gateway makes of a key."""

        async def ask() -> Principal:
            store = await Store.connect(self.dsn, max_size=1)
            try:
                pepper = secrets.load(self.root / "secrets.json").key_pepper
                return await Authenticator(store, pepper).authenticate(key)
            finally:
                await store.close()

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def folder(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    for dsn in fresh_database(postgres_server, template="template0"):
        yield Folder(tmp_path_factory.mktemp("cli"), dsn)


def another_database(folder: Folder, *, owner: str = "postgres") -> str:
    """The DSN of an empty one on the same server, by which its owner logs in."""
    name = f"cli_{uuid4().hex}"
    asyncio.run(execute(folder.dsn, f"CREATE DATABASE {name} OWNER {owner}"))
    return with_database(folder.dsn, name).replace("//postgres@", f"//{owner}@")


@pytest.fixture(scope="module")
def migrated(folder: Folder) -> Folder:
    """Also the test of a first and a second migration: the others build on it."""
    assert "run `sluice migrate`" in folder.complaint("tenant", "list")
    first = folder.ok("migrate")
    assert "Migrated from an empty database to" in first
    assert "secrets.json" in first
    assert (folder.root / "secrets.json").stat().st_mode & 0o777 == 0o600
    second = folder.ok("migrate")
    assert re.fullmatch(r"The schema is at \w+ already\.\n", second)
    return folder


def test_a_migration_that_cannot_be_done_says_so_in_a_line_and_leaves_nothing(
    migrated: Folder, tmp_path: Path
) -> None:
    login = f"poor_{uuid4().hex}"
    asyncio.run(execute(migrated.dsn, f"CREATE ROLE {login} LOGIN"))
    folders = []
    for name, owner in (("ahead", "postgres"), ("twice", "postgres"), ("poors", login)):
        (tmp_path / name).mkdir()
        folders.append(Folder(tmp_path / name, another_database(migrated, owner=owner)))
    ahead, twice, poor = folders
    ahead.ok("migrate")
    asyncio.run(execute(ahead.dsn, "UPDATE alembic_version SET version_num = '9999'"))
    for command in (("migrate",), ("tenant", "list")):
        assert re.search(r"has its schema at 9999, .*: update Sluice", ahead.complaint(*command))

    # A login that owns its database and is a member of neither role.
    complaint = poor.complaint("migrate")
    assert complaint.endswith(f"run: GRANT sluice_app, sluice_operator TO {login}\n")
    assert asyncio.run(_num_tables(poor.dsn)) == 0

    both = [twice.start("migrate") for _ in range(2)]
    assert [(one.communicate()[1], one.returncode) for one in both] == [("", 0)] * 2
    twice.ok("tenant", "list")


def test_secrets_that_are_lost_are_not_replaced_by_themselves(
    tmp_path: Path, folder: Folder
) -> None:
    lost = Folder(tmp_path, another_database(folder))
    assert "Made " in lost.ok("migrate")
    secrets = tmp_path / "secrets.json"
    first = secrets.read_text()
    lost.ok("bootstrap")
    secrets.unlink()
    told = lost.ok("migrate")
    assert "none was made" in told
    assert "already" in told
    assert not secrets.exists()
    assert "Made " in lost.ok("migrate", "--new-secrets")
    assert secrets.read_text() != first
    kept = secrets.read_text()
    lost.ok("migrate", "--new-secrets")
    assert secrets.read_text() == kept, "there is nothing to replace"


async def _num_tables(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    found: int = await connection.fetchval(
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    )
    await connection.close()
    return found


def test_tenants_are_created_and_listed(migrated: Folder) -> None:
    created = migrated.ok("tenant", "create", "acme", "--weight", "2.5", "--priority", "-1")
    assert created.startswith("Created tenant acme (")
    assert "`sluice key create 'Büro 7'` makes" in migrated.ok("tenant", "create", "Büro 7")
    rows = [line.split("\t") for line in migrated.ok("tenant", "list").splitlines()]
    assert {row[0]: row[2:4] for row in rows}.items() >= {
        "acme": ["2.5", "-1"],
        "Büro 7": ["1", "0"],
    }.items()
    assert "exists already; choose another name" in migrated.complaint("tenant", "create", "acme")
    assert "weight" in migrated.complaint("tenant", "create", "x", "--weight", "0")


def test_a_tenant_is_deleted_and_conversations_last_as_it_says(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "gone")
    key = migrated.ok("key", "create", "gone").strip()
    days = ("tenant", "update", "gone", "--conversation-days")
    for given, shown in (("7", "7"), ("0", "0"), ("default", "")):
        migrated.ok(*days, given)
        (row,) = rows(migrated.ok("tenant", "list", "--search", "gone"))
        assert row[-1] == shown
    assert "neither a number of days nor default" in migrated.complaint(*days, "week")
    assert "conversation_days" in migrated.complaint(*days, "40000")
    migrated.ok("tenant", "delete", "gone", "--yes")
    with pytest.raises(AuthenticationFailed):
        migrated.authenticate(key)
    assert "no tenant 'gone'" in migrated.complaint("tenant", "delete", "gone", "--yes")
    assert migrated.ok("tenant", "list", "--search", "gone") == ""
    migrated.ok("tenant", "create", "gone")


def test_a_key_lives_and_is_revoked(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "keys")
    key = migrated.ok("key", "create", "keys", "--name", "ci").strip()
    principal = migrated.authenticate(key)
    assert (principal.tenant.name, principal.key.name) == ("keys", "ci")
    assert principal.key.scopes == ("chat",)

    (row,) = [line.split("\t") for line in migrated.ok("key", "list", "keys").splitlines()]
    assert row[:3] == [principal.key.public_id, "ci", "chat"]
    assert row[5] == ""
    assert key not in "".join(row)

    assert "Revoked" in migrated.ok("key", "revoke", principal.key.public_id)
    (row,) = [line.split("\t") for line in migrated.ok("key", "list", "keys").splitlines()]
    assert row[5] != ""
    with pytest.raises(AuthenticationFailed):
        migrated.authenticate(key)


def test_scopes_and_expiry(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "scoped")
    both = ("--scope", "chat", "--scope", "admin")
    key = migrated.ok("key", "create", "scoped", *both, "--expires-in-days", "1").strip()
    principal = migrated.authenticate(key)
    assert principal.key.scopes == ("chat", "admin")
    assert principal.key.expires_at is not None
    for days in ("-1", "0", "inf", "nan"):
        told = migrated.complaint("key", "create", "scoped", "--expires-in-days", days)
        assert "expires" in told
    may = ("--project", "web", "--model", "tiny", "--model-alias", "gpt=tiny", "--user", "Ada")
    one = migrated.ok("key", "create", "scoped", *may).strip()
    key_of_web = migrated.authenticate(one).key
    listed = {row[0]: row[7:] for row in rows(migrated.ok("key", "list", "scoped"))}
    assert listed[key_of_web.public_id] == ["Ada", "web", "tiny gpt=tiny"]
    assert listed[principal.key.public_id] == ["", "default", ""]
    assert "ALIAS=MODEL" in migrated.complaint("key", "create", "scoped", "--model-alias", "gpt")
    assert key_of_web.model_aliases == {"gpt": "tiny"}
    assert key_of_web.allowed_models == ("tiny",)
    assert key_of_web.project_id != principal.key.project_id
    same = migrated.ok("key", "create", "scoped", "--project", "web").strip()
    assert migrated.authenticate(same).key.project_id == key_of_web.project_id
    assert "'root' is no scope" in migrated.complaint("key", "create", "scoped", "--scope", "root")


def test_a_key_is_rotated_with_grace_or_at_once(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "rotating")
    old = migrated.ok("key", "create", "rotating", "--model", "tiny").strip()
    public_id = migrated.authenticate(old).key.public_id
    new = migrated.ok("key", "rotate", public_id, "--grace", "1").strip()
    replaced = migrated.authenticate(new).key
    assert replaced.allowed_models == ("tiny",)
    assert migrated.authenticate(old).key.revoke_at is not None
    newest = migrated.ok("key", "rotate", replaced.public_id, "--grace", "0").strip()
    migrated.authenticate(newest)
    with pytest.raises(AuthenticationFailed):
        migrated.authenticate(new)
    assert "grace" in migrated.complaint("key", "rotate", public_id, "--grace", "-1")
    assert "--grace" in migrated.complaint("key", "rotate", public_id, "--grace", "nan")
    assert "no key 'abc'" in migrated.complaint("key", "rotate", "abc")


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_limits_are_set_shown_and_taken_away(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "limited")
    migrated.ok("project", "create", "limited", "web")
    assert migrated.ok("tenant", "limits", "limited", "--requests-per-minute", "600") != ""
    several = ["--tokens-per-minute", "9000", "--requests-per-minute", "none", "--weight", "1.5"]
    several += ["--max-cached-blocks", "64"]
    found = rows(migrated.ok("tenant", "limits", "limited", *several))
    assert found == [["tenant", "limited", "", "9,000", "", "", "", "", "", "1.5", "64"]]
    found = rows(
        migrated.ok("tenant", "limits", "limited", "--project", "web", "--max-concurrent", "3")
    )
    assert found[1][:2] == ["project", "web"]
    assert found[1][4] == "3"
    for arguments, words in (
        (("--max-queued", "few"), "--max-queued: 'few' is neither a number nor none"),
        (("--max-concurrent", "0"), "max_concurrent: must be within"),
        (("--project", "nope", "--priority", "1"), "no project 'nope'"),
        (("--key", "a", "--project", "b"), "give one of them"),
    ):
        assert words in migrated.complaint("tenant", "limits", "limited", *arguments)


def test_mcp_servers_are_allowed_and_denied(migrated: Folder) -> None:
    assert migrated.sluice("tenant", "create", "toolsmith").returncode == 0
    url = "https://example.com/mcp"
    allowed = migrated.sluice("mcp", "allow", "toolsmith", f"{url}/", "--private")
    assert (allowed.returncode, allowed.stdout) == (0, f"Responses of toolsmith may use {url}.\n")
    assert url in migrated.sluice("mcp", "list", "toolsmith").stdout
    assert migrated.sluice("mcp", "deny", "toolsmith", url).returncode == 0
    again = migrated.sluice("mcp", "deny", "toolsmith", url)
    assert (again.returncode, "sluice mcp list" in again.stderr) == (1, True)
    assert migrated.sluice("mcp", "allow", "toolsmith", "nonsense").returncode == 1


def test_the_first_admin_key_is_made_once_and_changes_are_shown(
    migrated: Folder, tmp_path: Path
) -> None:
    """In a database of its own, whose first admin key it is."""
    fresh = Folder(tmp_path, another_database(migrated))
    fresh.ok("migrate")
    key = fresh.ok("bootstrap").strip()
    principal = fresh.authenticate(key)
    assert (principal.tenant.name, principal.key.scopes) == ("admin", ("owner",))
    assert "only once" in fresh.complaint("bootstrap")
    fresh.ok("tenant", "update", "admin", "--rename", "ops", "--weight", "2", "--disable")
    with pytest.raises(AuthenticationFailed):
        fresh.authenticate(key)
    assert "enabled" in fresh.ok("tenant", "update", "ops", "--enable")
    fresh.ok("project", "create", "ops", "web")
    fresh.ok("project", "rename", "ops", "web", "shop")
    assert [row[0] for row in rows(fresh.ok("project", "list", "ops"))] == ["default", "shop"]
    newest = rows(fresh.ok("audit", "ops", "--limit", "4"))
    assert [row[2] for row in newest] == [
        "project.update",
        "project.create",
        "tenant.update",
        "tenant.update",
    ]
    assert newest[0][5] == "name: web → shop"
    assert all(row[1].startswith("command line (") for row in newest)

    asyncio.run(_use(fresh.dsn, principal))
    (used,) = rows(fresh.ok("usage", "--by", "tenant,key,model"))
    assert used[:3] == ["ops", f"first admin ({principal.key.public_id})", "demo"]
    assert used[3:] == ["1", "100", "64", "20", "0"]
    assert rows(fresh.ok("usage", "ops", "--by", "", "--per", "day"))[0][1:3] == ["1", "100"]
    assert "'week' is none of" in fresh.complaint("usage", "--per", "week")
    (single,) = rows(fresh.ok("usage", "ops", "--rows"))
    assert single[2:8] == ["ops", used[1], "demo", "", "stop", ""]
    assert single[8:] == ["100", "64", "20", "0"]
    header, line = fresh.ok("usage", "--format", "csv").splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["id"] == single[1]
    assert f'"id":"{single[1]}"' in fresh.ok("usage", "--format", "jsonl")
    assert "'xml' is none of csv, jsonl" in fresh.complaint("usage", "--format", "xml")
    assert rows(fresh.ok("tenant", "list", "--search", "OP"))[0][0] == "ops"
    assert fresh.ok("tenant", "list", "--search", "nobody") == ""
    assert len(rows(fresh.ok("audit", "--search", "project.update"))) == 1
    (running,) = rows(fresh.ok("stream", "list", "ops"))
    assert running[1:6] == ["ops", used[1], "demo", "running", "10"]
    assert "Told all workers" in fresh.ok("stream", "kill", running[0])
    assert "no request" in fresh.complaint("stream", "kill", str(uuid4()))


async def _use(dsn: str, who: Principal) -> None:
    """A request that has ended and one that runs."""
    store = await Store.connect(dsn, max_size=1)
    await store.record_usage(make_event(who.key))
    await store.reserve(ask(who.key))
    await store.close()


def test_who_is_not_there_is_named(migrated: Folder) -> None:
    assert "no tenant 'nobody'" in migrated.complaint("key", "create", "nobody")
    assert "no tenant 'nobody'" in migrated.complaint("key", "list", "nobody")
    assert "no key 'abc'" in migrated.complaint("key", "revoke", "abc")


def test_a_table_on_a_terminal_has_headings(migrated: Folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "tenant", "list"],
        cwd=migrated.root,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "TERM": "xterm"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "weight" in done.stdout


def test_serve_tells_its_progress_answers_and_stops(migrated: Folder) -> None:
    migrated.ok("tenant", "create", "served")
    key = migrated.ok("key", "create", "served").strip()
    migrated.write_settings("serve.toml", model=str(MODEL_DIR))
    process = migrated.start("serve", "--config", "serve.toml")
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "serving on" in line:
                break
        assert any("Loading" in line for line in lines), lines
        url = lines[-1].split()[-1]
        answer = migrated.ok(
            *("chat", "--url", url, "--key", key, "--temperature", "0"),
            "What is the capital of France?",
        )
        assert "Paris" in answer
    finally:
        process.terminate()
        rest = process.communicate(timeout=20)[1]
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


def damaged(folder: Path, damage: str) -> None:
    """A copy of the bundled model with one thing wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    if damage == "folder":
        return
    shutil.copytree(MODEL_DIR, folder)
    if damage == "model.safetensors":
        os.truncate(folder / damage, 100_000)
    elif damage == "config.json":
        (folder / damage).write_text("{")
    else:
        (folder / damage).unlink()


@pytest.mark.parametrize(
    "damage",
    [
        "folder",
        "tokenizer.json",
        pytest.param("config.json", marks=pytest.mark.nightly),
        pytest.param("model.safetensors", marks=pytest.mark.nightly),
    ],
)
def test_serve_with_an_unreadable_model(migrated: Folder, damage: str) -> None:
    damaged(migrated.root / "gone", damage)
    migrated.write_settings("gone.toml", model="gone")
    done = migrated.sluice("serve", "--config", "gone.toml")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("sluice: ")
    assert "gone" in line
    if damage != "folder":
        assert damage in line


def test_serve_without_its_secrets(migrated: Folder, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text(
        f'[engine]\nmodel = "{MODEL_DIR}"\n[server]\nport = 0\n[tenants]\ndsn = "{migrated.dsn}"\n'
    )
    line = Folder.complaint(migrated, "serve", "--config", str(tmp_path / "sluice.toml"))
    assert "secrets.json: no such file" in line


def test_serve_with_a_schema_of_another_version(migrated: Folder) -> None:
    (migrated.root / "fresh.toml").write_text(
        f'[engine]\nmodel = "{MODEL_DIR}"\n[server]\nport = 0\n'
        f'[tenants]\ndsn = "{another_database(migrated)}"\nsecrets_file = "secrets.json"\n'
    )
    assert "run `sluice migrate`" in migrated.complaint("serve", "--config", "fresh.toml")
